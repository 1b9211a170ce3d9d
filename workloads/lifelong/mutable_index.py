"""An index whose documents are added, changed, deleted and embedded again while it is searched.

A folder holds immutable files of rows and ``index.json``, the manifest, which lists them in order together with the
deletions. A document's row is its last one in that order, unless the document was deleted after it. Each change writes
at most one new file and then replaces the manifest, so that a process that is killed at any moment leaves the index
before the change or after it. Files that no manifest lists are removed by the next compaction.

Several processes may change and search one folder: a change holds a lock and begins with the current manifest; a
search needs no lock. The files are those of :mod:`workloads.lifelong.index`. Each row's model is recorded by its
session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.cache import file_lock, replacing
from workloads.data.errors import DataError
from workloads.lifelong.index import LOST_FILE_FIX, MANIFEST, Segment, as_tensor, checksum, read_segment, write_segment
from workloads.lifelong.last_entries import LastEntries

FORMAT = 2
"""Version of the manifest's format. Format 1 is that of the append-only index."""

BLOCK = 8192
"""Rows searched at once."""

ADDED = 8
"""New lines of the manifest that are added one by one; for more of them the documents are sorted again."""

Rows = tuple[int, NDArray[np.int64], NDArray[np.float32]]
"""A session whose model wrote rows, their documents (n,) and vectors (n, d)."""

Embed = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Embeds documents with a model, (n,) -> (n, d)."""


@dataclass(frozen=True, eq=False)
class _Entry:
    """A line of the manifest: rows of one model, or deletions, which have no segment."""

    serial: int
    line: dict[str, Any]
    docs: NDArray[np.int64]
    segment: Segment | None


class MutableIndex:
    """A folder's documents and vectors at the time of the last :meth:`refresh` or change.

    An object is used by one thread. Other threads and processes open the folder themselves.
    """

    def __init__(self, folder: Path) -> None:
        """Open an index that :meth:`create` made.

        Raises:
            DataError: there is no such index, or a file of it is missing or damaged.
        """
        self.folder = folder
        self._text = ""
        self._entries: list[_Entry] = []
        self._last = LastEntries()
        self._live: dict[int, NDArray[np.int64]] = {}
        self._segments: dict[tuple[int, int], Segment] = {}
        self.refresh()

    @classmethod
    def create(
        cls, folder: Path, lineage: str, dim: int, compatible: bool = True, rows: Iterable[Rows] = (), **about: Any
    ) -> Self:
        """Create an index of a lineage of models with vectors of ``dim`` numbers, whole or not at all.

        Args:
            folder: where.
            lineage: of the models.
            dim: dimension of the vectors.
            compatible: whether later models can read the rows of earlier ones.
            rows: sessions of models with their documents and vectors; no document occurs twice.
            about: further keys of the manifest.

        Raises:
            FileExistsError: the folder has an index.
            OSError: a file cannot be written; there is no index then.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock"):
            if (folder / MANIFEST).exists():
                raise FileExistsError(f"{folder} has an index already")
            lines = [_written(folder, serial, *one) for serial, one in enumerate(rows)]
            content = {"format": FORMAT, "lineage": lineage, "compatible": compatible, "dim": dim, "next": len(lines)}
            _write(folder, {**content, **about, "entries": lines, "segments": _as_segments(lines)})
        return cls(folder)

    @classmethod
    def copy_of(cls, source: Path, folder: Path) -> Self:
        """Create an index with the rows of an append-only one, which stays as it is for the models that read it.

        Raises:
            DataError: the source has no index, or a file of it is missing or damaged.
            FileExistsError: the folder has an index.
        """
        manifest = _parsed(source, _read(source))
        segments = [read_segment(source / line["file"]) for line in manifest["segments"]]
        rows = [(segment.session, segment.docs, segment.vectors) for segment in segments]
        return cls.create(folder, manifest["lineage"], manifest["dim"], manifest["compatible"], rows)

    def __len__(self) -> int:
        return sum(len(live) for _, live in self._of(None))

    @property
    def lineage(self) -> str:
        return str(self._manifest["lineage"])

    @property
    def dim(self) -> int:
        return int(self._manifest["dim"])

    def dim_of(self, session: int) -> int:
        """The dimension of the vectors of a model."""
        return self.dim

    @property
    def sessions(self) -> list[int]:
        """The sessions whose models wrote the rows, ascending."""
        return sorted({segment.session for segment, _ in self._of(None)})

    def docs(self, session: int | None = None) -> NDArray[np.int64]:
        """The document of each row, (n,), in the order of :meth:`blocks`. ``session``: those of one model's rows."""
        return np.concatenate([np.empty(0, np.int64), *(segment.docs[live] for segment, live in self._of(session))])

    def blocks(self, session: int | None = None) -> Iterator[torch.Tensor]:
        """The rows in blocks (n, d), the input of exact search. Rows are copied only where some were replaced."""
        for segment, live in self._of(session):
            for first in range(0, len(live), BLOCK):
                rows = live[first : first + BLOCK]
                whole = rows[-1] - rows[0] + 1 == len(rows)
                yield as_tensor(segment.vectors[rows[0] : rows[-1] + 1] if whole else segment.vectors[rows])

    def vectors(self, session: int | None = None) -> NDArray[np.float32]:
        """A copy of the rows, (n, d)."""
        blocks = [block.numpy() for block in self.blocks(session)]
        dim = self.dim if session is None else self.dim_of(session)
        return np.concatenate([np.empty((0, dim), np.float32), *blocks])

    def refresh(self) -> None:
        """Read the changes of other processes.

        Raises:
            DataError: a file is missing or damaged.
        """
        while True:
            text = _read(self.folder)
            if text == self._text:
                return
            try:
                self._load(text)
            except DataError:
                if _read(self.folder) == text:
                    raise
            else:
                return

    def put(self, session: int, docs: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Add documents embedded by the model of ``session``, or replace their rows.

        Raises:
            ValueError: a document occurs twice, or the shape is not (n, d).
            OSError: a file cannot be written; the index does not change.
        """
        with self._changing():
            self._append(session, docs, vectors)

    def delete(self, docs: NDArray[np.int64]) -> None:
        """Delete documents; those that are not in the index are ignored. Their rows are removed by a compaction.

        Raises:
            OSError: the manifest cannot be written; the index does not change.
        """
        with self._changing():
            gone = np.intersect1d(docs, self.docs())
            if len(gone):
                self._commit([*self._lines(), {"serial": self._next(), "deleted": gone.tolist()}], whole=False)

    def not_by(self, session: int) -> NDArray[np.int64]:
        """The documents whose rows are of other models, ascending."""
        return self._last.docs[self._has_other(session)[self._last.last]]

    def embed_again(
        self, session: int, embed: Embed, docs: NDArray[np.int64] | None = None, batch: int = 1024
    ) -> Iterator[int]:
        """Embed documents again with the model of ``session``, a batch at a time, each of them stored.

        May be stopped or killed between any two operations and called again: documents with a row of this model are
        skipped. A document that is deleted or changed while its batch is embedded keeps that change; a changed one is
        embedded once more if its row is of another model.

        Args:
            session: of the model.
            embed: embeds documents by their current texts.
            docs: the documents in order; by default all.
            batch: documents stored at once.

        Yields:
            The number of documents left, after each batch.
        """
        while True:
            self.refresh()
            pending = self.not_by(session)
            if docs is not None:
                pending = docs[np.isin(docs, pending)]
            if not len(pending):
                return
            for first in range(0, len(pending), batch):
                self.refresh()
                part = pending[first : first + batch]
                part = part[self._has_other(session)[self._last.positions(part)]]
                before = self._serials(part)
                vectors = embed(part) if len(part) else np.empty((0, self.dim_of(session)), np.float32)
                with self._changing():
                    same = (self._serials(part) == before) & (before >= 0)
                    if same.any():
                        self._append(session, part[same], vectors[same])
                yield max(0, len(pending) - first - batch)

    def compact(self) -> None:
        """Write the rows of each model to one file, ordered by document, and remove all other files.

        The copy of one model's rows is in memory. Rows that were replaced or deleted are gone afterwards.

        Raises:
            OSError: a file cannot be written; the index does not change.
        """
        with self._changing():
            lines = []
            number = self._next()
            for session in self.sessions:
                docs = self.docs(session)
                order = np.argsort(docs)
                lines.append(_written(self.folder, number, session, docs[order], self.vectors(session)[order]))
                number += 1
            self._commit(lines, whole=True)
            listed = {line["file"] for line in lines}
            for file in chain(self.folder.glob("rows-*.arrow"), self.folder.glob(".rows-*.part")):
                if file.name not in listed:
                    file.unlink()

    def _of(self, session: int | None) -> list[tuple[Segment, NDArray[np.int64]]]:
        """The segments with rows that a search returns, of one model or of all, and these rows, ascending."""
        for position, entry in enumerate(self._entries):
            if entry.segment and position not in self._live:
                self._live[position] = np.flatnonzero(self._last.positions(entry.docs) == position)
        return [
            (entry.segment, self._live[position])
            for position, entry in enumerate(self._entries)
            if entry.segment and len(self._live[position]) and session in (None, entry.segment.session)
        ]

    def _has_other(self, session: int) -> NDArray[np.bool_]:
        """For each entry, whether it has rows of another model; False at position -1."""
        return np.array([bool(one.segment and one.segment.session != session) for one in self._entries] + [False])

    def _serials(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The serial number of each document's entry, (n,); -1 if it is not in the index."""
        serials = [entry.serial if entry.segment else -1 for entry in self._entries]
        return np.array([*serials, -1], np.int64)[self._last.positions(docs)]

    def _append(self, session: int, docs: NDArray[np.int64], vectors: NDArray[np.float32], **about: Any) -> None:
        """Store rows in a lock; ``about`` are keys of the manifest that change with them."""
        if vectors.shape != (len(docs), self.dim_of(session)):
            raise ValueError(f"vectors have shape {vectors.shape}, not {(len(docs), self.dim_of(session))}")
        if len(np.unique(docs)) < len(docs):
            raise ValueError("a document occurs twice among those to store")
        if len(docs):
            line = _written(self.folder, self._next(), session, docs, vectors)
            whole = self._is_whole() and bool((self._last.positions(docs) < 0).all())
            self._commit([*self._lines(), line], whole, **about)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the folder's lock, with the current manifest read."""
        with file_lock(self.folder / ".lock"):
            self.refresh()
            yield

    def _lines(self) -> list[dict[str, Any]]:
        return [entry.line for entry in self._entries]

    def _is_whole(self) -> bool:
        """Whether a search returns every row of every entry."""
        rows = sum(len(entry.docs) for entry in self._entries)
        return all(entry.segment for entry in self._entries) and rows == len(self._last.docs)

    def _next(self) -> int:
        return int(self._manifest["next"])

    def _commit(self, lines: list[dict[str, Any]], whole: bool, **about: Any) -> None:
        """Replace the manifest, which is what makes a change.

        ``whole``: a search returns every row, so that this is also a manifest of the append-only index.
        """
        last = max([self._next() - 1, *(line["serial"] for line in lines)])
        content = {**self._manifest, **about, "next": last + 1, "entries": lines}
        content.pop("segments", None)
        if whole:
            content["segments"] = _as_segments(lines)
        _write(self.folder, content)
        self.refresh()

    def _load(self, text: str) -> None:
        manifest = _parsed(self.folder, text)
        if manifest["format"] > FORMAT or "entries" not in manifest:
            raise DataError(
                "the index is of another format", file=self.folder / MANIFEST, got=f"format {manifest['format']}",
                expected=f"format {FORMAT}",
            )  # fmt: skip
        lines = manifest["entries"]
        unchanged = len(self._entries)
        if lines[:unchanged] != self._lines() or len(lines) - unchanged > ADDED:
            unchanged = 0
        added = [self._opened(line) for line in lines[unchanged:]]
        if unchanged:
            for entry in added:
                self._last.add(entry.docs)
        else:
            self._last = LastEntries([entry.docs for entry in added])
        self._entries = [*self._entries[:unchanged], *added]
        self._live.clear()
        self._manifest: dict[str, Any] = manifest
        self._text = text
        listed = {(entry.serial, entry.segment.crc32) for entry in self._entries if entry.segment}
        self._segments = {key: segment for key, segment in self._segments.items() if key in listed}

    def _opened(self, line: dict[str, Any]) -> _Entry:
        """The entry of a line of the manifest."""
        if "deleted" in line:
            return _Entry(line["serial"], line, np.array(line["deleted"], np.int64), None)
        segment = self._mapped(line)
        return _Entry(line["serial"], line, segment.docs, segment)

    def _mapped(self, line: dict[str, Any]) -> Segment:
        """The mapped rows of a line. Each file is read and verified once."""
        key = (line["serial"], line["crc32"])
        if key not in self._segments:
            segment = read_segment(self.folder / line["file"])
            if segment.crc32 != line["crc32"]:
                what = "the index file is not the one of the manifest"
                raise DataError(what, file=self.folder / line["file"], fix=LOST_FILE_FIX)
            self._segments[key] = segment
        return self._segments[key]


def _written(
    folder: Path, serial: int, session: int, docs: NDArray[np.int64], vectors: NDArray[np.float32]
) -> dict[str, Any]:
    """Write a file of rows. Returns its line of the manifest."""
    segment = Segment(session, docs, vectors, checksum(docs, vectors))
    name = f"rows-{serial:08d}.arrow"
    write_segment(folder / name, segment)
    return {"serial": serial, "file": name, "session": session, "rows": len(docs), "crc32": segment.crc32}


def _as_segments(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of the manifest as those of the append-only index."""
    return [{name: line[name] for name in ("file", "session", "rows", "crc32")} for line in lines]


def _read(folder: Path) -> str:
    try:
        return (folder / MANIFEST).read_text()
    except OSError as error:
        raise DataError("there is no index", file=folder / MANIFEST) from error


def _parsed(folder: Path, text: str) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise DataError("the index file is damaged", file=folder / MANIFEST, fix=LOST_FILE_FIX)
    return manifest


def _write(folder: Path, content: dict[str, Any]) -> None:
    with replacing(folder / MANIFEST) as file:
        file.write(json.dumps(content).encode())
