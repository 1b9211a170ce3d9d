"""Texts as token ids without padding: tokenised once, in bulk, by what is in a ``tokenizer.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

_UNKNOWN, _FIRST, _LAST = "[UNK]", "[CLS]", "[SEP]"
_CONTINUES = "##"
_LONGEST_WORD = 100


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The token ids of n texts, one text after the other.

    ``ids`` (T,) int32, and text i has ``ids[offsets[i]:offsets[i + 1]]``; ``offsets`` (n + 1,) int64. ``types`` (T,)
    int32, which of two texts a token belongs to. ``cut`` (n,): whether a text was longer than the limit.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.int32]
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.cut)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, (n,)."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer[Any]]) -> Tokens:
        """Some of the texts, in the order of ``rows``."""
        index, offsets = spans(self.offsets[:-1][rows], self.lengths[rows])
        return Tokens(self.ids[index], offsets, self.types[index], self.cut[rows])


def spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places ``start, start + 1, ...`` of each of n spans, one after the other, and their offsets (n + 1,)."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets


class Tokenizer:
    """A fast tokenizer of the ``tokenizers`` library and the longest text that its encoder takes.

    ``definition`` is the text of its ``tokenizer.json``: all that it takes to make it again.
    """

    def __init__(self, definition: str, max_length: int) -> None:
        """Take a tokenizer over.

        Args:
            definition: the text of a ``tokenizer.json``. What it says of padding and truncation is left out.
            max_length: most tokens of a text, special ones included.

        Raises:
            ValueError: it is no tokenizer's definition.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"the text is not that of a tokenizer.json: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.definition: str = self._tokenizer.to_str()
        self.max_length = max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, int]:
        return self.definition, self.max_length

    @classmethod
    def of_words(cls, texts: Sequence[str], size: int, max_length: int) -> Self:
        """A WordPiece tokenizer of the characters of some texts and their most frequent words.

        Args:
            size: most entries of its vocabulary; equally frequent words go by the alphabet, so that it is always
                the same one. All characters are in it, whatever the size.
        """
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({_UNKNOWN: 0}, unk_token=_UNKNOWN))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        words: Counter[str] = Counter()
        for text in texts:
            clean = tokenizer.normalizer.normalize_str(text)
            words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(clean))
        characters = sorted({character for word in words for character in word})
        entries = ["[PAD]", _UNKNOWN, _FIRST, _LAST, *characters, *(_CONTINUES + one for one in characters)]
        frequent = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
        entries += frequent[: max(0, size - len(entries))]
        tokenizer.model = tokenizers.models.WordPiece(
            {entry: number for number, entry in enumerate(entries)},
            unk_token=_UNKNOWN,
            continuing_subword_prefix=_CONTINUES,
            max_input_chars_per_word=_LONGEST_WORD,
        )
        tokenizer.post_processor = tokenizers.processors.BertProcessing(
            (_LAST, entries.index(_LAST)), (_FIRST, entries.index(_FIRST))
        )
        return cls(tokenizer.to_str(), max_length)

    @property
    def size(self) -> int:
        """Entries of the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def highest(self) -> int:
        """The highest token id; -1 without any."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenise with the special tokens of a single text, cut to ``max_length``."""
        return self.single(self.bare(texts))

    def bare(self, texts: Sequence[str]) -> Tokens:
        """Tokenise without special tokens and without a limit: what :meth:`single` and :meth:`pairs` are made of."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter((one for text in ids for one in text), np.int32, int(lengths.sum()))
        offsets = spans(np.zeros(len(ids), np.int64), lengths)[1]
        return Tokens(flat, offsets, np.zeros_like(flat), np.zeros(len(ids), np.bool_))

    def single(self, bare: Tokens) -> Tokens:
        """Texts with their special tokens, cut. One without any token stays empty: its vector is zero (E-S4)."""
        before, after = self._single.special
        kept = np.minimum(bare.lengths, self.max_length - len(before) - len(after))
        framed = bare.lengths > 0
        return _joined([before.on(framed), _Part.of(bare, kept, 0), after.on(framed)], kept < bare.lengths)

    def pairs(self, first: Tokens, second: Tokens) -> Tokens:
        """Two texts in one sequence, row by row, as a cross-encoder takes them.

        Where both do not fit, the longer one gives way until they are equally long (``longest_first``), an odd token
        being the longer one's.
        """
        before, between, after = self._pair.special
        room = self.max_length - len(before) - len(between) - len(after)
        half = room // 2 + (first.lengths > second.lengths) * (room % 2)
        kept_first = np.minimum(first.lengths, np.maximum(room - second.lengths, half))
        kept_second = np.minimum(second.lengths, room - kept_first)
        every = np.ones(len(first), np.bool_)
        texts = _Part.of(first, kept_first, self._pair.types[0]), _Part.of(second, kept_second, self._pair.types[1])
        parts = [before.on(every), texts[0], between.on(every), texts[1], after.on(every)]
        return _joined(parts, (kept_first < first.lengths) | (kept_second < second.lengths))

    @cached_property
    def _single(self) -> _Template:
        return _template(self._tokenizer.encode("a", add_special_tokens=True))

    @cached_property
    def _pair(self) -> _Template:
        return _template(self._tokenizer.encode("a", "a", add_special_tokens=True))


class _Special(NamedTuple):
    """Special tokens that stand together, (k,) each."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)

    def on(self, rows: NDArray[np.bool_]) -> _Part:
        """Them in each of the rows that are True."""
        return _Part(self.ids, self.types, np.zeros(len(rows), np.int64), rows * np.int64(len(self.ids)))


class _Part(NamedTuple):
    """What stands in one place of each of n sequences: ``ids[starts[i]:starts[i] + lengths[i]]``."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Tokens, kept: NDArray[np.int64], kind: int) -> _Part:
        """The first tokens of each text."""
        return cls(texts.ids, np.full(len(texts.ids), kind, np.int32), texts.offsets[:-1], kept)


class _Template(NamedTuple):
    """The special tokens before, between and after texts, and the type of each text."""

    special: list[_Special]
    types: list[int]


def _template(probe: tokenizers.Encoding) -> _Template:
    """Found from how one text, or two, came out."""
    ids = np.array(probe.ids, np.int32)
    types = np.array(probe.type_ids, np.int32)
    texts = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)  # a token each
    bounds = [0, *(boundary for text in texts.tolist() for boundary in (text, text + 1)), len(ids)]
    runs = [slice(start, stop) for start, stop in zip(bounds[::2], bounds[1::2])]
    return _Template([_Special(ids[run], types[run]) for run in runs], types[texts].tolist())


def _joined(parts: Sequence[_Part], cut: NDArray[np.bool_]) -> Tokens:
    """Each sequence from its parts."""
    lengths = np.stack([part.lengths for part in parts])
    _, offsets = spans(np.zeros(len(cut), np.int64), lengths.sum(0))
    starts = offsets[:-1] + np.cumsum(lengths, 0) - lengths
    ids = np.empty(offsets[-1], np.int32)
    types = np.empty(offsets[-1], np.int32)
    for part, start in zip(parts, starts):
        target = spans(start, part.lengths)[0]
        source = spans(part.starts, part.lengths)[0]
        ids[target], types[target] = part.ids[source], part.types[source]
    return Tokens(ids, offsets, types, cut)
