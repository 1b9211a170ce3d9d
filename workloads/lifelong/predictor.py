"""Search with a trained retrieval model and its index.

Exported with the model together with ``served_text.py``, ``search.py``, ``approximate.py`` and the rule for abstaining;
needs nothing else of the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..abstention.decision import rule
from ..abstention.scores import by
from ..encoders.approximate import CollectionSearch, check
from ..encoders.served_text import ServedTextEncoder, text_columns

_FLOOR = 1e-8
_BLOCK = 8192
_TEXTS = 64
_FOREIGN = 2**20
"""Rows with such a session are of a model of another lineage; see ``live_index.py``."""


class Predictor:
    """Embeds queries and searches the index that belongs to the model."""

    def __init__(self, weights: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
        """Rebuild the encoder and its index.

        Args:
            weights: ``model.*`` by the names of the transformer's state; ``tokenizer`` and ``index.doc_ids``, the bytes
                of JSON texts; ``index.docs`` (n,), ``index.models`` (n,) and ``index.vectors`` (n, d), unless the index
                is in files.
            config: ``model``, ``pooling``, ``max_length`` and ``lineage``: its id, the ``session`` of the model,
                whether it is ``compatible`` with older rows, the folder of the ``index`` and its ``segments``.

        Raises:
            ValueError: a file of the index is missing, damaged, or not the one that the model was registered with.
        """
        self.config = config
        self.table = {name: side for name, side in weights.items() if name.startswith("abstention.")}
        self.lineage = config["lineage"]
        self.encoder = ServedTextEncoder(
            weights,
            "model.",
            config["model"],
            _text(weights["tokenizer"]),
            int(config["max_length"]),
            config["pooling"],
        )
        self.doc_ids: list[str] = json.loads(_text(weights["index.doc_ids"]))
        if "index.vectors" in weights:
            self.index = [(weights["index.docs"], weights["index.vectors"])]
        else:
            self.index = _mapped(Path(self.lineage["index"]), self.lineage["segments"])

        self._search = CollectionSearch()

    @torch.inference_mode()
    def predict(
        self, inputs: pd.DataFrame, *, k: int = 10, index: str = "", recall: float = 1.0, **abstention: Any
    ) -> pd.DataFrame:
        """The best documents of each query.

        Args:
            inputs: column ``query`` with texts.
            k: number of documents per query; all documents if there are fewer.
            index: folder of another index of the same lineage, such as a later state of the index.
            recall: below 1 the model's own index, if it is large, is searched by lists, so many that this share of
                the best documents is found; see ``approximate.py``. The first call then makes them.
            abstention: of a model with an abstention part, ``risk`` and what it is promised by; see ``PARAMS`` and
                ``rule`` in ``decision.py``.

        Returns:
            One row per query and document, in the order of the input, best first: ``query``, ``rank`` from 1,
            ``document`` and ``score``, a cosine. With ``recall`` below 1 also ``recall``, as it was measured against
            exact search. With ``risk`` also ``abstain`` and its ``reason``. An empty query has no rows.

        Raises:
            ValueError: the column is missing or has non-texts, ``k`` is below 1, ``recall`` is not valid, the model
                cannot read the index, or the risk cannot be promised.
        """
        promised = rule(self.table, self.config, **abstention)
        if promised is not None and index:
            raise ValueError("risk= holds for the index that the model was registered with, not for another index=")
        check(recall, promised is not None)
        (queries,) = text_columns(inputs, "query")
        segments = _open(Path(index), self.lineage) if index else self.index
        vectors, empty, _ = self.encoder(queries, _TEXTS)
        vectors = functional.normalize(vectors, eps=_FLOOR)
        blocks = (
            torch.from_numpy(np.array(rows[first : first + _BLOCK]))  # a copy: mapped memory is read-only
            for _, rows in segments
            for first in range(0, len(rows), _BLOCK)
        )
        depth = self.config["depth"] if promised is not None else 0
        count = sum(len(numbers) for numbers, _ in segments)
        most = max(k, depth) if k > 0 else k
        scores, index_rows, measured = self._search(vectors, blocks, count, most, 1.0 if index else recall)
        listed = scores[:, :depth].cpu().numpy()
        scores, index_rows = scores[:, :k], index_rows[:, :k]
        docs = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in segments)])[index_rows.cpu().numpy()]
        non_empty = np.flatnonzero(~empty).tolist()
        number = docs.shape[1]
        output = pd.DataFrame(
            {
                "query": [queries[row] for row in non_empty for _ in range(number)],
                "rank": np.tile(np.arange(1, number + 1), len(non_empty)),
                "document": [self.doc_ids[doc] for row in non_empty for doc in docs[row].tolist()],
                "score": scores[non_empty].cpu().numpy().ravel().astype(np.float32),
            }
        )
        if recall < 1:
            output = output.assign(recall=measured)[(index_rows[non_empty] >= 0).ravel().cpu().numpy()]
        if promised is not None:
            own = by(promised.score, listed[non_empty], promised.k, promised.temperature)
            promised.spread(output, own, np.repeat(np.arange(len(non_empty)), number))
        return output


def _open(folder: Path, lineage: dict[str, Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Open another index than the model's own, if the model can read it."""
    manifest = _manifest(folder)
    if manifest["lineage"] != lineage["id"]:
        raise ValueError(
            f"the index in {folder} belongs to models of another lineage ({manifest['lineage'][:8]}) than this one "
            f"({lineage['id'][:8]}). Use the model that was promoted with it"
        )
    lines = manifest["entries"] if "entries" in manifest else manifest["segments"]
    segments = [line for line in lines if "file" in line]
    try:
        mapped = _mapped(folder, segments)
    except ValueError:
        if _manifest(folder) == manifest:
            raise
        return _open(folder, lineage)  # it was compacted meanwhile
    current = _current(lines, mapped)
    written = {int(segment["session"]) for segment, (docs, _) in zip(segments, current) if len(docs)}
    if written and max(written) >= _FOREIGN:
        raise ValueError(
            f"the index in {folder} has rows of a model of another lineage, in another space. "
            "Search it with `orchestrator index`"
        )
    if written and (
        max(written) > lineage["session"] or (not lineage["compatible"] and written != {lineage["session"]})
    ):
        raise ValueError(
            f"the index in {folder} has rows written by the models of sessions {sorted(written)}, which the model of "
            f"session {lineage['session']} cannot read. Use the model that was promoted with it"
        )
    return current


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no index that can be read: {error}") from None
    return manifest


def _current(
    lines: list[dict[str, Any]], mapped: list[tuple[NDArray[Any], NDArray[Any]]]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The rows of documents that no later line replaces or deletes; see ``mutable_index.py``."""
    current = []
    later = np.empty(0, np.int64)
    rows = mapped.copy()
    for line in reversed(lines):
        if "deleted" in line:
            later = np.union1d(later, np.array(line["deleted"], np.int64))
            continue
        docs, vectors = rows.pop()
        kept = ~np.isin(docs, later)
        later = np.union1d(later, docs)
        current.append((docs, vectors) if kept.all() else (docs[kept], vectors[kept]))
    return current[::-1]


def _mapped(folder: Path, segments: list[dict[str, Any]]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Map the given segments of an index: documents and vectors of each."""
    import pyarrow as pa

    mapped = []
    for segment in segments:
        file = folder / segment["file"]
        try:
            with pa.memory_map(str(file)) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            checksum = json.loads(batch.schema.metadata[b"index"])["crc32"]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ValueError(f"the index file {file} is missing, truncated or damaged: {error}") from None
        if checksum != segment["crc32"]:
            raise ValueError(
                f"the index file {file} is not the one that the model was registered with: its rows were written "
                f"again, with checksum {checksum:08x} instead of {segment['crc32']:08x}. Restore the file, or use the "
                "model that was registered with it"
            )
        column = batch.column("vector")
        vectors = column.values.to_numpy().reshape(-1, column.type.list_size)
        mapped.append((batch.column("doc").to_numpy(), vectors))
    return mapped


def _text(array: NDArray[Any]) -> str:
    return bytes(array.tobytes()).decode()
