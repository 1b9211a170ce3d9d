"""The index: embeddings of documents, a segment a session, only ever appended to.

Each segment holds its rows' documents, their vectors and which session's model wrote them. With a folder it is an Arrow
file there that is memory-mapped, and ``index.json`` names the segments in their order; without, it is in memory and
goes into checkpoints. What counts is what the checkpoint knows: files of later sessions were written by a run that
died, and are removed. Files of earlier ones stay, also where all was written again: the models of then still read them.
A run has its folder to itself: where another index is already it takes the next free name, and the checkpoint knows it.
"""

from __future__ import annotations

import json
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.data.cache import replacing
from workloads.data.errors import DataError

FORMAT = 1
"""Of the files."""

MANIFEST = "index.json"

_BLOCK = 8192  # rows that are searched at once


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that one model wrote: ``docs`` (n,) int64, ``vectors`` (n, d) float32, ``session``, that model's."""

    session: int
    docs: NDArray[np.int64]
    vectors: NDArray[np.float32]
    crc32: int

    @property
    def file(self) -> str:
        return _file(self.session)


class Index:
    """Segments of one lineage of models.

    ``lineage`` names the run whose models write and read it. In a ``compatible`` one a model reads what it and those
    before it wrote; otherwise only what it wrote itself.
    """

    def __init__(
        self, lineage: str, dim: int, compatible: bool, folder: Path | None = None, writes: bool = True
    ) -> None:
        """Begin an empty index.

        Args:
            lineage: of the models.
            dim: d.
            compatible: whether later models read older rows.
            folder: where its files go, or beside it with a number where another index is; None keeps it in memory.
            writes: whether this process, of several that hold the same index, writes the files.
        """
        self.lineage, self.dim, self.compatible, self.folder, self.writes = lineage, dim, compatible, folder, writes
        self._requested_folder, self._folder_reserved = folder, False
        self._segments: list[Segment] = []
        self._locate()

    def __len__(self) -> int:
        return sum(len(segment.docs) for segment in self._segments)

    @property
    def docs(self) -> NDArray[np.int64]:
        """The document of each row, (n,)."""
        return np.concatenate([np.empty(0, np.int64), *(segment.docs for segment in self._segments)])

    @property
    def models(self) -> NDArray[np.int32]:
        """The session whose model wrote each row, (n,)."""
        parts = [np.full(len(segment.docs), segment.session, np.int32) for segment in self._segments]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def vectors(self) -> NDArray[np.float32]:
        """All rows, (n, d): a copy."""
        empty = np.empty((0, self.dim), np.float32)
        return np.concatenate([empty, *(segment.vectors for segment in self._segments)])

    def blocks(self) -> Iterator[torch.Tensor]:
        """The rows in their order, some thousands at a time, without a copy: what exact search takes."""
        for segment in self._segments:
            yield from torch.split(_tensor(segment.vectors), _BLOCK)

    def take(self, docs: NDArray[np.int64]) -> torch.Tensor:
        """The stored vectors of some documents, zero for -1. (...,) -> (..., d), on the host.

        Raises:
            KeyError: a document is not in the index.
        """
        flat = docs.ravel()
        found = np.zeros((len(flat), self.dim), np.float32)
        known = np.flatnonzero(flat >= 0)
        place = np.searchsorted(self._sorted, flat[known]).clip(max=max(0, len(self._sorted) - 1))
        if len(known) and (not len(self._sorted) or (self._sorted[place] != flat[known]).any()):
            raise KeyError("a document is not in the index")
        rows = self._rows[place]
        part = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(part).tolist():
            here = part == number
            found[known[here]] = self._segments[number].vectors[rows[here] - self._starts[number]]
        return torch.from_numpy(found.reshape(*docs.shape, self.dim))

    def reserve_folder(self) -> None:
        """Make the folder its own before anything is written there; what is in it already stays, and another is taken.

        Raises:
            OSError: the folder cannot be made.
        """
        if self._folder_reserved or self._requested_folder is None or not self.writes:
            return
        for number in count(1):
            self.folder = (
                self._requested_folder.with_name(f"{self._requested_folder.name}-{number}")
                if number > 1
                else self._requested_folder
            )
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), (self.folder / MANIFEST).open("x") as file:
                file.write(self._described([]))
                break
        self._folder_reserved = True

    def append(self, session: int, docs: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Add what the model of ``session`` wrote. Where models are not compatible it takes the place of all before.

        Raises:
            ValueError: a document is in the index already.
            OSError: the file cannot be written; the index is as before.
        """
        kept = self._segments if self.compatible else []
        if (kept and np.isin(docs, self.docs).any()) or len(np.unique(docs)) < len(docs):
            raise ValueError(f"a document arrives a second time in session {session}")
        segment = Segment(session, docs, vectors, _crc32(docs, vectors))
        self.reserve_folder()
        segment = self._written(segment)
        if self.folder is not None and self.writes:
            self._write_manifest([*kept, segment])
        self._segments = [*kept, segment]
        self._locate()

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """The segments by file, session, rows and checksum: what a model that belongs to them has to find."""
        return _listed(self._segments)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: what each segment is; vectors only where no file holds them."""
        segments = []
        for segment in self._segments:
            held = {"session": segment.session, "crc32": segment.crc32, "docs": torch.from_numpy(segment.docs.copy())}
            segments.append(held if self.folder else held | {"vectors": torch.from_numpy(segment.vectors.copy())})
        folder = self.folder.name if self.folder and self._folder_reserved else None
        return {"lineage": self.lineage, "segments": segments, "folder": folder}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be what :meth:`state` gave. Files of sessions after its last are removed; of a state that was another run's,
        as population based training hands on, a copy is made, and nothing of that run's is touched.

        Raises:
            DataError: a file is missing, truncated or not the one that belongs to the checkpoint.
            ValueError: the checkpoint is of another run's index, or of one that was kept elsewhere.
        """
        if state["lineage"] != self.lineage:
            raise ValueError("the checkpoint's index belongs to another run: its models cannot read each other's rows")
        segments = []
        theirs, own = self._folder_of(state)
        for held in state["segments"]:
            if theirs is None:
                if "vectors" not in held:
                    raise ValueError("the checkpoint's index is in files: give the parameter index as before")
                docs, vectors = held["docs"].cpu().numpy().copy(), held["vectors"].cpu().numpy().copy()
                segments.append(Segment(held["session"], docs, vectors, held["crc32"]))
            else:
                file = theirs / _file(held["session"])
                found = read_segment(file)
                if found.crc32 != held["crc32"]:
                    raise DataError("the index file is not the one of the checkpoint", file=file, fix=_LOST_FILE_FIX)
                segments.append(found)
        self.folder, self._folder_reserved = theirs, own
        if not own:
            self.reserve_folder()
            segments = [self._written(segment) for segment in segments]
        self._segments = segments
        self._locate()
        if self.folder is not None and self.writes:
            self._write_manifest(segments)
            last = max((segment.file for segment in segments), default="")
            for file in self.folder.glob("session-*.arrow"):
                if file.name > last:
                    file.unlink()

    def _folder_of(self, state: Mapping[str, Any]) -> tuple[Path | None, bool]:
        """Where the files of a state are, and whether that is this run's folder, or the one it took in its place.

        Before a state knew its folder the lineage named it.
        """
        if self._requested_folder is None:
            return None, False
        name = state.get("folder", self.lineage[:16])
        own = re.fullmatch(re.escape(self._requested_folder.name) + r"(-\d+)?", name or "") is not None
        return self._requested_folder.with_name(name or self._requested_folder.name), own

    def _written(self, segment: Segment) -> Segment:
        """The segment as its file holds it, where there are files."""
        if self.folder is None or not self.writes:
            return segment
        write_segment(self.folder / segment.file, segment)
        return read_segment(self.folder / segment.file)

    def _write_manifest(self, segments: Sequence[Segment]) -> None:
        assert self.folder is not None
        with replacing(self.folder / MANIFEST) as file:
            file.write(self._described(segments).encode())

    def _described(self, segments: Sequence[Segment]) -> str:
        content = {
            "format": FORMAT, "lineage": self.lineage, "compatible": self.compatible, "dim": self.dim,
            "segments": _listed(segments),
        }  # fmt: skip
        return json.dumps(content, indent=1)

    def _locate(self) -> None:
        docs = self.docs
        self._rows = np.argsort(docs, kind="stable")
        self._sorted = docs[self._rows]
        self._starts = np.cumsum([0, *(len(segment.docs) for segment in self._segments)])[:-1]


def write_segment(path: Path, segment: Segment) -> None:
    """Write a segment as one Arrow file that appears whole or not at all: columns doc, model and vector, (n,) each.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa

    vectors = np.ascontiguousarray(segment.vectors, np.float32)
    columns = {
        "doc": pa.array(segment.docs),
        "model": pa.array(np.full(len(segment.docs), segment.session, np.int32)),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
    }
    batch = pa.record_batch(columns)
    meta = {"format": FORMAT, "session": segment.session, "crc32": segment.crc32}
    schema = batch.schema.with_metadata({b"index": json.dumps(meta)})
    with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.cast(schema))


def read_segment(path: Path) -> Segment:
    """Map a file of :func:`write_segment`; every byte is checked once.

    Raises:
        DataError: it is missing, truncated, damaged, or of a later format.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        meta = json.loads(batch.schema.metadata[b"index"])
        if meta["format"] > FORMAT:
            got = f"format {meta['format']}"
            raise DataError(
                "the index was written by a later version", file=path, got=got, expected=f"at most {FORMAT}"
            )
        # Not Arrow's own to_numpy, which imports pandas. Vectors stay mapped, the few numbers of documents do not.
        docs = np.frombuffer(batch.column("doc").buffers()[1], np.int64)[: batch.num_rows].copy()
        column = batch.column("vector")
        dim = column.type.list_size
        vectors = np.frombuffer(column.values.buffers()[1], np.float32)[: batch.num_rows * dim].reshape(-1, dim)
        if _crc32(docs, vectors) != meta["crc32"]:
            raise DataError("the index file is damaged: its checksum differs", file=path, fix=_LOST_FILE_FIX)
    except FileNotFoundError as error:
        raise DataError("the index file is missing", file=path, fix=_LOST_FILE_FIX) from error
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError("the index file is truncated or damaged", file=path, fix=_LOST_FILE_FIX) from error
    return Segment(int(meta["session"]), docs, vectors, int(meta["crc32"]))


_LOST_FILE_FIX = "Bring the file back, or start a new run: an index is never mended"


def _listed(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [{"file": one.file, "session": one.session, "rows": len(one.docs), "crc32": one.crc32} for one in segments]


def _file(session: int) -> str:
    return f"session-{session:04d}.arrow"


def _crc32(docs: NDArray[np.int64], vectors: NDArray[np.float32]) -> int:
    first = zlib.crc32(np.ascontiguousarray(docs).data)
    return zlib.crc32(np.ascontiguousarray(vectors).data, first)


def _tensor(rows: NDArray[np.float32]) -> torch.Tensor:
    """A tensor over mapped memory, which no one writes to, whatever PyTorch fears."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(rows)
