"""Tokenise texts into ids without padding, once and in bulk, with the tokenizer of a ``tokenizer.json``."""

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

_AT_ONCE = 2**13
"""Texts that the library tokenises at once: it takes 100 bytes for each token, of which 8 are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Token ids of n texts, one text after the other.

    ``ids`` (T,) int32, and text i has ``ids[offsets[i]:offsets[i + 1]]``; ``offsets`` (n + 1,) int64. ``types`` (T,)
    int32: 0 or 1, the text of a pair that a token is of. ``cut`` (n,): whether a text was truncated.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.int32]
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.cut)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each text, (n,)."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer[Any]]) -> Tokens:
        """The texts at ``rows``, in that order."""
        index, offsets = spans(self.offsets[:-1][rows], self.lengths[rows])
        return Tokens(self.ids[index], offsets, self.types[index], self.cut[rows])


def spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions ``start, start + 1, ...`` of n spans, one after the other, and their offsets (n + 1,)."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths), offsets


class Tokenizer:
    """A fast tokenizer of the ``tokenizers`` library, with the maximal text length of its encoder.

    ``definition`` is the text of its ``tokenizer.json``, from which it can be built again.
    """

    def __init__(self, definition: str, max_length: int) -> None:
        """Build the tokenizer.

        Args:
            definition: text of a ``tokenizer.json``. Its padding and truncation are ignored.
            max_length: maximal number of tokens of a text, with special tokens.

        Raises:
            ValueError: it is not the definition of a tokenizer.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises no narrower class
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
        """A WordPiece tokenizer of the characters and the most frequent words of texts.

        Args:
            size: maximal size of the vocabulary. Equally frequent words are ordered alphabetically, so the result is
                deterministic. All characters are included, whatever the size.
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
        """Size of the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def highest(self) -> int:
        """The highest token id; -1 if there is none."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Tokenise with the special tokens of a single text, truncated to ``max_length``."""
        return self.single(self.bare(texts))

    def bare(self, texts: Sequence[str]) -> Tokens:
        """Tokenise without special tokens and truncation, as input of :meth:`single` and :meth:`pairs`."""
        parts = [self._ids(texts[first : first + _AT_ONCE]) for first in range(0, len(texts), _AT_ONCE)]
        ids = np.concatenate([np.zeros(0, np.int32), *(flat for flat, _ in parts)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(own for _, own in parts)])
        offsets = spans(np.zeros(len(texts), np.int64), lengths)[1]
        return Tokens(ids, offsets, np.zeros_like(ids), np.zeros(len(texts), np.bool_))

    def _ids(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of some texts, one after the other, and their number in each text."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter((one for text in ids for one in text), np.int32, int(lengths.sum())), lengths

    def single(self, bare: Tokens) -> Tokens:
        """Add special tokens and truncate. A text without tokens stays empty: its vector is zero (E-S4).

        What was cut before counts as cut.
        """
        before, after = self._single.special
        kept = np.minimum(bare.lengths, self.max_length - len(before) - len(after))
        framed = bare.lengths > 0
        return _joined([before.on(framed), _Part.of(bare, kept, 0), after.on(framed)], (kept < bare.lengths) | bare.cut)

    def pairs(self, first: Tokens, second: Tokens) -> Tokens:
        """Join two texts per row into one sequence, for a cross-encoder.

        If they do not fit, the longer one is truncated until both are equally long (``longest_first``); with an odd
        number of tokens it keeps one more.
        """
        before, between, after = self._pair.special
        room = self.max_length - len(before) - len(between) - len(after)
        half = room // 2 + (first.lengths > second.lengths) * (room % 2)
        kept_first = np.minimum(first.lengths, np.maximum(room - second.lengths, half))
        kept_second = np.minimum(second.lengths, room - kept_first)
        every = np.ones(len(first), np.bool_)
        texts = _Part.of(first, kept_first, self._pair.types[0]), _Part.of(second, kept_second, self._pair.types[1])
        parts = [before.on(every), texts[0], between.on(every), texts[1], after.on(every)]
        cut = (kept_first < first.lengths) | (kept_second < second.lengths)
        return _joined(parts, cut | first.cut | second.cut)

    @cached_property
    def _single(self) -> _Template:
        return _template(self._tokenizer.encode("a", add_special_tokens=True))

    @cached_property
    def _pair(self) -> _Template:
        return _template(self._tokenizer.encode("a", "a", add_special_tokens=True))


class _Special(NamedTuple):
    """Adjacent special tokens, (k,) each."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)

    def on(self, rows: NDArray[np.bool_]) -> _Part:
        """These tokens in each row that is True."""
        return _Part(self.ids, self.types, np.zeros(len(rows), np.int64), rows * np.int64(len(self.ids)))


class _Part(NamedTuple):
    """One part of each of n sequences: ``ids[starts[i]:starts[i] + lengths[i]]``."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Tokens, kept: NDArray[np.int64], kind: int) -> _Part:
        """The first tokens of each text."""
        return cls(texts.ids, np.full(len(texts.ids), kind, np.int32), texts.offsets[:-1], kept)


class _Template(NamedTuple):
    """Special tokens before, between and after texts, and the type of each text."""

    special: list[_Special]
    types: list[int]


def _template(probe: tokenizers.Encoding) -> _Template:
    """The template, derived from encoded examples."""
    ids = np.array(probe.ids, np.int32)
    types = np.array(probe.type_ids, np.int32)
    texts = np.array([-1 if special else text for special, text in zip(probe.special_tokens_mask, probe.sequence_ids)])
    first = [int(np.flatnonzero(texts == text)[0]) for text in range(probe.n_sequences)]  # a text may be several tokens
    after = [int(np.flatnonzero(texts == text)[-1]) + 1 for text in range(probe.n_sequences)]
    runs = [slice(start, stop) for start, stop in zip([0, *after], [*first, len(ids)])]
    return _Template([_Special(ids[run], types[run]) for run in runs], types[first].tolist())


def _joined(parts: Sequence[_Part], cut: NDArray[np.bool_]) -> Tokens:
    """Join the parts of each sequence."""
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
