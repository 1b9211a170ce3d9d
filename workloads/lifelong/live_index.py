"""An index whose rows were written by registered models of one lineage or of several, with texts of added documents.

The manifest lists the models, and files with the texts of documents that were added or changed; all other documents
are those of a collection. Models of the index's own lineage keep their session as their number. A model of another
lineage has a number of at least :data:`FOREIGN`, which models of the lineage refuse to read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.cache import replacing
from workloads.data.errors import DataError
from workloads.lifelong.encoder_change import IndexPart, search_parts
from workloads.lifelong.index import LOST_FILE_FIX
from workloads.lifelong.mutable_index import MutableIndex, Rows
from workloads.seeding import random_order

FOREIGN = 2**20
"""The smallest number of a model of another lineage, above all sessions of a run."""

REFERENCE = 200
"""Documents by which the scores of models in different spaces are standardised."""

Texts = Callable[[NDArray[np.int64]], Sequence[str]]
"""The texts of documents of the collection, by their numbers (n,)."""

_FLOOR = 1e-6


class Encoders(Protocol):
    """A model's encoders of queries and of documents: from n texts to unit vectors (n, d) on one device."""

    def queries(self, texts: Sequence[str]) -> torch.Tensor: ...
    def documents(self, texts: Sequence[str]) -> torch.Tensor: ...


class LiveIndex(MutableIndex):
    """A :class:`MutableIndex` with the models that wrote its rows and the texts that are not the collection's."""

    orders: ClassVar[tuple[str, ...]] = ("newest", "oldest", "random")
    """Documents to embed again first: by the session of the model that wrote their rows, or in a fixed random order."""

    @classmethod
    def of_model(
        cls, folder: Path, lineage: Mapping[str, Any], rows: Iterable[Rows], dim: int, version: str, run: str
    ) -> Self:
        """Create an index with the rows of a registered model, whole or not at all.

        Args:
            folder: where.
            lineage: of the model: ``id``, ``session`` and ``compatible``.
            rows: of the model's index.
            dim: dimension of the vectors.
            version: the registered version.
            run: the id of its run.

        Raises:
            FileExistsError: the folder has an index.
            OSError: a file cannot be written.
        """
        model = {"session": lineage["session"], "dim": dim, "version": version, "run": run}
        return cls.create(folder, lineage["id"], dim, lineage["compatible"], rows, models=[model])

    @property
    def models(self) -> list[dict[str, Any]]:
        """``session``, ``dim``, ``version`` and ``run`` of each model; the first is the one that made the index."""
        return list(self._manifest.get("models", []))

    @property
    def texts(self) -> Mapping[int, tuple[str, str]]:
        """Id and text of the documents that were added or changed, by number, some of which may be deleted by now."""
        return self._texts

    def dim_of(self, session: int) -> int:
        return next((int(one["dim"]) for one in self.models if one["session"] == session), self.dim)

    def reader(self, session: int) -> int:
        """The model whose query vectors search the rows of a model: the last of a compatible lineage, or itself."""
        own = [int(one["session"]) for one in self.models if one["session"] < FOREIGN]
        return max([session, *own]) if session < FOREIGN and self._manifest["compatible"] else session

    def join(self, version: str, run: str, dim: int, lineage: Mapping[str, Any] | None = None) -> int:
        """Add a model, unless it is among those of the index, and return its number.

        Args:
            version: the registered version.
            run: the id of its run.
            dim: dimension of its vectors.
            lineage: ``id`` and ``session`` of a model of this workload. Of the index's lineage, later models keep
                their session; earlier ones count as of another lineage, because they cannot read later rows.
        """
        with self._changing():
            for one in self.models:
                if (one["version"], one["run"]) == (version, run):
                    return int(one["session"])
            taken = [*self.sessions, *(int(one["session"]) for one in self.models)]
            number = max(FOREIGN - 1, *taken) + 1
            own = max((one for one in taken if one < FOREIGN), default=-1)
            if lineage and lineage["id"] == self.lineage and lineage["session"] > own:
                number = int(lineage["session"])
            joined = {"session": number, "dim": dim, "version": version, "run": run}
            self._commit(self._lines(), self._is_whole(), models=[*self.models, joined])
            return number

    def add(self, session: int, documents: Mapping[str, str], collection: Mapping[str, int], encode: Encoders) -> int:
        """Add documents, or change their texts, embedded by a model. Returns the number of new ones.

        Args:
            session: number of the model.
            documents: texts by id.
            collection: numbers of the collection's documents by id.
            encode: the model's encoders.

        Raises:
            OSError: a file cannot be written; the index does not change.
        """
        vectors = encode.documents(list(documents.values())).cpu().numpy()
        with self._changing():
            own = {**collection, **{name: doc for doc, (name, _) in self.texts.items()}}
            free = 1 + max([-1, *own.values()])
            fresh = {name: free + row for row, name in enumerate(name for name in documents if name not in own)}
            numbers = own | fresh
            docs = np.array([numbers[name] for name in documents], np.int64)
            lines = [[doc, name, documents[name]] for doc, name in zip(docs.tolist(), documents)]
            file = self._write_texts(lines)
            files = [*(name for name in self._manifest.get("texts", []) if name != file), file]
            before = len(self)
            self._append(session, docs, vectors, texts=files)
            return len(self) - before

    def to_embed(self, session: int, share: float, order: str) -> NDArray[np.int64]:
        """The documents to embed again until a share of all has rows of a model, in one of :attr:`orders`.

        A call after some of them were embedded returns the others.

        Raises:
            ValueError: the share or the order is not valid.
        """
        if not 0 < share <= 1 or order not in self.orders:
            raise ValueError(f"the share must be above 0 and at most 1, got {share}, the order one of {self.orders}")
        others = self.not_by(session)
        left = round(share * len(self)) - (len(self) - len(others))
        parts = [self.docs(number) for number in self.sessions]
        docs = np.concatenate([np.empty(0, np.int64), *parts])
        written = np.repeat(np.array(self.sessions, np.int64), [len(part) for part in parts])
        key = random_order(1 + int(docs.max(initial=0)), 0)[docs] if order == "random" else written
        first = docs[np.lexsort((docs, -key if order == "newest" else key))]
        return first[np.isin(first, others)][: max(0, left)]

    def embed(self, session: int, share: float, order: str, encode: Encoders, of: Texts, batch: int) -> Iterator[int]:
        """Embed a share of the documents again, as :meth:`embed_again`, of which a repeated call goes on.

        Raises ValueError as :meth:`to_embed`.
        """
        docs = self.to_embed(session, share, order)
        return self.embed_again(session, lambda part: encode.documents(self._read(part, of)).cpu().numpy(), docs, batch)

    def search(
        self, queries: Sequence[str], k: int, encoders: Callable[[int], Encoders], of: Texts
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k best documents of each query, best first; with rows in several spaces by standardised scores.

        Each space is searched with its own model's vectors of the queries. A score is then less the mean of the same
        model's scores of :data:`REFERENCE` documents, over their standard deviation. The reference documents are a
        fixed random sample of the index, which each model embeds.

        Args:
            queries: Q texts.
            k: at least 1.
            encoders: the encoders of a model by its number; called for the models that are needed.
            of: texts of the collection's documents.

        Returns:
            Scores (Q, min(k, N)) and documents of the same shape. In one space a score is a cosine.

        Raises:
            ValueError: the index is empty, or k is below 1.
        """
        if not len(self):
            raise ValueError("the index has no documents")
        spaces: dict[int, list[int]] = {}
        for session in self.sessions:
            spaces.setdefault(self.reader(session), []).append(session)
        every = np.sort(self.docs())
        sample = self._read(every[random_order(len(every), 0)[:REFERENCE]], of) if len(spaces) > 1 else []
        parts = []
        for reader, sessions in spaces.items():
            model = encoders(reader)
            vectors = model.queries(queries)
            mean = vectors.new_zeros(1)
            deviation = vectors.new_ones(1)
            if sample:
                scores = vectors @ model.documents(sample).T
                mean = scores.mean(1)
                deviation = scores.std(1, correction=0).clamp_min(_FLOOR)
            docs = np.concatenate([self.docs(session) for session in sessions])
            blocks = chain.from_iterable(self.blocks(session) for session in sessions)
            parts.append(IndexPart(vectors, blocks, docs, 1 / deviation, -mean / deviation))
        scores, docs = search_parts(parts, k)
        return scores.cpu().numpy(), docs

    def compact(self) -> None:
        """As of :class:`MutableIndex`; the texts of deleted documents are gone afterwards too."""
        super().compact()
        with self._changing():
            live = set(self.docs().tolist())
            lines = [[doc, *entry] for doc, entry in sorted(self.texts.items()) if doc in live]
            files = [self._write_texts(lines)] if lines else []
            self._commit(self._lines(), self._is_whole(), texts=files)
            for file in self.folder.glob("texts-*.jsonl"):
                if file.name not in files:
                    file.unlink()

    def _read(self, docs: NDArray[np.int64], of: Texts) -> list[str]:
        """The current texts of documents."""
        changed = np.isin(docs, np.fromiter(self.texts, np.int64, len(self.texts)))
        texts = iter(of(docs[~changed]))
        return [self.texts[doc][1] if own else next(texts) for doc, own in zip(docs.tolist(), changed.tolist())]

    def _write_texts(self, lines: Sequence[Sequence[Any]]) -> str:
        """Write numbers, ids and texts to a file, which is named by its content. Returns its name."""
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        name = f"texts-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
        with replacing(self.folder / name) as file:
            file.write(content)
        return name

    def _load(self, text: str) -> None:
        texts: dict[int, tuple[str, str]] = {}
        for name in json.loads(text).get("texts", []):
            try:
                lines = map(json.loads, (self.folder / name).read_text().splitlines())
                texts.update({doc: (document, words) for doc, document, words in lines})
            except (OSError, ValueError) as error:
                raise DataError(
                    "the file of texts is missing or damaged", file=self.folder / name, fix=LOST_FILE_FIX
                ) from error
        super()._load(text)
        self._texts = texts
