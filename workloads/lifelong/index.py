"""The append-only index of document embeddings, with one segment per session.

Each segment holds documents, their vectors, and the session whose model wrote them. With a folder, a segment is a
memory-mapped Arrow file, and ``index.json`` lists the segments in order. Without a folder, segments are in memory and
are saved in checkpoints. The checkpoint is authoritative: on resuming, files of later sessions are removed. Files of
earlier sessions stay, even if everything was embedded again, because registered models still read them. Each run has
its own folder: if the name is taken, the next free one is used and stored in the checkpoint.
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
import pyarrow as pa
import torch
from numpy.typing import NDArray

from workloads.data.cache import replacing
from workloads.data.errors import DataError

FORMAT = 1
"""Version of the file format."""

MANIFEST = "index.json"

_BLOCK = 8192  # rows searched at once


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows written by the model of ``session``: ``docs`` (n,) int64 and ``vectors`` (n, d) float32."""

    session: int
    docs: NDArray[np.int64]
    vectors: NDArray[np.float32]
    crc32: int

    @property
    def file(self) -> str:
        return _file(self.session)


class Index:
    """The segments of one lineage of models.

    ``lineage`` identifies the run whose models write and read the index. In a ``compatible`` lineage a model can read
    rows of earlier models; otherwise it can read its own rows only.
    """

    def __init__(
        self, lineage: str, dim: int, compatible: bool, folder: Path | None = None, writes: bool = True
    ) -> None:
        """Create an empty index.

        Args:
            lineage: lineage of the models.
            dim: dimension d of the vectors.
            compatible: whether later models can read older rows.
            folder: folder of its files; if it is taken, a number is appended to the name. None keeps it in memory.
            writes: whether this process writes the files; exactly one of the processes that hold the index should.
        """
        self.lineage = lineage
        self.dim = dim
        self.compatible = compatible
        self.folder = folder
        self.writes = writes
        self._requested_folder = folder
        self._folder_reserved = False
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
        """A copy of all rows, (n, d)."""
        empty = np.empty((0, self.dim), np.float32)
        return np.concatenate([empty, *(segment.vectors for segment in self._segments)])

    def blocks(self) -> Iterator[torch.Tensor]:
        """The rows in order, in blocks of some thousands, without copying. Input of exact search."""
        for segment in self._segments:
            yield from torch.split(as_tensor(segment.vectors), _BLOCK)

    def take(self, docs: NDArray[np.int64]) -> torch.Tensor:
        """The stored vectors of some documents, zero for -1, on the host. (...,) -> (..., d).

        Raises:
            KeyError: a document is not in the index.
        """
        flat = docs.ravel()
        vectors = np.zeros((len(flat), self.dim), np.float32)
        real = np.flatnonzero(flat >= 0)
        sorted_row = np.searchsorted(self._sorted, flat[real]).clip(max=max(0, len(self._sorted) - 1))
        if len(real) and (not len(self._sorted) or (self._sorted[sorted_row] != flat[real]).any()):
            raise KeyError("a document is not in the index")
        rows = self._rows[sorted_row]
        part = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(part).tolist():
            here = part == number
            vectors[real[here]] = self._segments[number].vectors[rows[here] - self._starts[number]]
        return torch.from_numpy(vectors.reshape(*docs.shape, self.dim))

    def reserve_folder(self) -> None:
        """Reserve a folder for this run before anything is written. An existing index is left alone.

        Raises:
            OSError: the folder cannot be created.
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
        """Add the rows written by the model of ``session``. If models are not compatible, they replace all others.

        Raises:
            ValueError: a document is in the index already.
            OSError: the file cannot be written; the index does not change.
        """
        kept = self._segments if self.compatible else []
        if (kept and np.isin(docs, self.docs).any()) or len(np.unique(docs)) < len(docs):
            raise ValueError(f"a document arrives a second time in session {session}")
        segment = Segment(session, docs, vectors, checksum(docs, vectors))
        self.reserve_folder()
        segment = self._written(segment)
        if self.folder is not None and self.writes:
            self._write_manifest([*kept, segment])
        self._segments = [*kept, segment]
        self._locate()

    def map_last(self, folder: Path | None) -> None:
        """Map the last segment from the folder in which another process wrote it, if it can be read here.

        Else it stays in this process' memory.
        """
        if folder is None or self.writes or not self._segments:
            return
        with suppress(DataError):
            segment = read_segment(folder / self._segments[-1].file)
            if segment.crc32 == self._segments[-1].crc32:
                self._segments[-1] = segment

    @property
    def manifest(self) -> list[dict[str, Any]]:
        """File, session, number of rows and checksum of each segment. A registered model requires these segments."""
        return _listed(self._segments)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint. It holds the vectors only if they are not in files."""
        segments = []
        for segment in self._segments:
            entry = {"session": segment.session, "crc32": segment.crc32, "docs": torch.from_numpy(segment.docs.copy())}
            segments.append(entry if self.folder else entry | {"vectors": torch.from_numpy(segment.vectors.copy())})
        folder = self.folder.name if self.folder and self._folder_reserved else None
        return {"lineage": self.lineage, "segments": segments, "folder": folder}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Files of later sessions are removed. If the state is of another run, as in population based training, its files
        are copied and left unchanged.

        Raises:
            DataError: a file is missing, truncated or not the one of the checkpoint.
            ValueError: the checkpoint is of another run's index, or of an index that is stored elsewhere.
        """
        if state["lineage"] != self.lineage:
            raise ValueError("the checkpoint's index belongs to another run: its models cannot read each other's rows")
        source, is_own = self._folder_of(state)
        segments = [_restored(entry, source) for entry in state["segments"]]
        self.folder = source
        self._folder_reserved = is_own
        if not is_own:
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
        """The folder of a state's files, and whether it is this run's own folder.

        States of earlier versions do not name their folder; it is then derived from the lineage.
        """
        if self._requested_folder is None:
            return None, False
        name = state.get("folder", self.lineage[:16])
        own = re.fullmatch(re.escape(self._requested_folder.name) + r"(-\d+)?", name or "") is not None
        return self._requested_folder.with_name(name or self._requested_folder.name), own

    def _written(self, segment: Segment) -> Segment:
        """Write the segment to its file and map it. In memory, or without ``writes``, return it unchanged."""
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


def _restored(entry: Mapping[str, Any], source: Path | None) -> Segment:
    """A segment of a state: from its file in ``source``, or from the state itself."""
    if source is None:
        if "vectors" not in entry:
            raise ValueError("the checkpoint's index is in files: give the parameter index as before")
        docs = entry["docs"].cpu().numpy().copy()
        vectors = entry["vectors"].cpu().numpy().copy()
        return Segment(entry["session"], docs, vectors, entry["crc32"])
    file = source / _file(entry["session"])
    segment = read_segment(file)
    if segment.crc32 != entry["crc32"]:
        raise DataError("the index file is not the one of the checkpoint", file=file, fix=LOST_FILE_FIX)
    return segment


def write_segment(path: Path, segment: Segment) -> None:
    """Write a segment atomically as an Arrow file with columns doc, model and vector, (n,) each.

    Raises:
        OSError: the file cannot be written.
    """
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
    """Map a file written by :func:`write_segment` and verify its checksum.

    Raises:
        DataError: the file is missing, truncated, damaged, or of a later format.
    """
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        meta = json.loads(batch.schema.metadata[b"index"])
        if meta["format"] > FORMAT:
            got = f"format {meta['format']}"
            raise DataError(
                "the index was written by a later version", file=path, got=got, expected=f"at most {FORMAT}"
            )
        # Arrow's to_numpy would import pandas. The vectors stay mapped; the small array of documents is copied.
        docs = np.frombuffer(batch.column("doc").buffers()[1], np.int64)[: batch.num_rows].copy()
        column = batch.column("vector")
        dim = column.type.list_size
        vectors = np.frombuffer(column.values.buffers()[1], np.float32)[: batch.num_rows * dim].reshape(-1, dim)
        if checksum(docs, vectors) != meta["crc32"]:
            raise DataError("the index file is damaged: its checksum differs", file=path, fix=LOST_FILE_FIX)
    except FileNotFoundError as error:
        raise DataError("the index file is missing", file=path, fix=LOST_FILE_FIX) from error
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError("the index file is truncated or damaged", file=path, fix=LOST_FILE_FIX) from error
    return Segment(int(meta["session"]), docs, vectors, int(meta["crc32"]))


LOST_FILE_FIX = "Restore the file, or start a new run: an index is never repaired"
"""What a user does about a file that is missing or damaged."""


def _listed(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [{"file": one.file, "session": one.session, "rows": len(one.docs), "crc32": one.crc32} for one in segments]


def _file(session: int) -> str:
    return f"session-{session:04d}.arrow"


def checksum(docs: NDArray[np.int64], vectors: NDArray[np.float32]) -> int:
    """CRC-32 of a segment's documents (n,) and vectors (n, d)."""
    first = zlib.crc32(np.ascontiguousarray(docs).data)
    return zlib.crc32(np.ascontiguousarray(vectors).data, first)


def as_tensor(rows: NDArray[np.float32]) -> torch.Tensor:
    """A tensor over read-only mapped memory. PyTorch's warning is suppressed because nothing writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(rows)
