"""Vectors with their ids as Parquet, and as indexes of faiss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import UserError
from orchestrator.registry import models as registry
from orchestrator.registry.export.model import Model, Written
from orchestrator.registry.prediction import predict_batch
from orchestrator.registry.tables import columns_of, frames, typed

FILE = "embeddings.parquet"
K = 10
QUERIES = 1000
"""Queries of the measured recall, at most."""

NEIGHBOURS = 32
BUILD = 200
SEARCH = 128
"""Of HNSW: links of a node, and candidates while building and searching (Malkov and Yashunin, 2018)."""

COLUMNS = {"bi_encoder": ("sentence", "vector"), "simclr": ("image", "embedding")}
"""The column that an encoder reads, and the one with its vectors."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows with ids. ``queries`` (q, d) search them, by inner product; ``what`` names a row."""

    ids: Sequence[Any]
    rows: NDArray[np.float32]
    queries: NDArray[np.float32]
    what: str
    users: tuple[Sequence[Any], NDArray[np.float32]] | None = None


def embeddings(model: Model, target: Path) -> Written:
    """Write ``embeddings.parquet``, and of a recommender ``users.parquet``."""
    vectors = _vectors(model)
    _write(vectors.ids, vectors.rows, target / FILE)
    notes = [f"{len(vectors.rows)} {vectors.what} of {vectors.rows.shape[1]} numbers"]
    if vectors.users:
        _write(*vectors.users, target / "users.parquet")
        notes.append(f"{len(vectors.users[1])} users in users.parquet")
    usage = f'import pandas as pd\n\ntable = pd.read_parquet("FOLDER/{FILE}")  # columns id, vector'
    return Written(usage, "pandas", [_product(model)], notes)


def faiss(model: Model, target: Path) -> Written:
    """Write an exact index and one of HNSW, the ids of their rows, and the recall of the second."""
    import faiss as library

    vectors = _vectors(model)
    rows = np.ascontiguousarray(vectors.rows)
    exact = library.IndexFlatIP(rows.shape[1])
    graph = library.IndexHNSWFlat(rows.shape[1], NEIGHBOURS, library.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD
    graph.hnsw.efSearch = SEARCH
    for index, name in ((exact, "exact.faiss"), (graph, "hnsw.faiss")):
        index.add(rows)
        library.write_index(index, str(target / name))
    _write(vectors.ids, rows, target / FILE)
    k = min(K, len(rows))
    queries = np.ascontiguousarray(vectors.queries[:QUERIES])
    expected, near = (index.search(queries, k)[1] for index in (exact, graph))
    recall = float(np.mean([len(np.intersect1d(*both)) / k for both in zip(expected, near)]))
    note = f"recall@{k} of hnsw.faiss against exact.faiss: {recall:.4f}, over {len(queries)} queries"
    usage = (
        "import faiss, numpy as np, pandas as pd\n\n"
        f'ids = pd.read_parquet("FOLDER/{FILE}", columns=["id"])["id"]\n'
        'index = faiss.read_index("FOLDER/hnsw.faiss")\n'
        "scores, rows = index.search(queries, 10)  # queries (q, d), float32"
    )
    return Written(usage, "faiss", [_product(model), note], [f"{len(rows)} {vectors.what}", note])


def _vectors(model: Model) -> Vectors:
    workload = model.version.workload
    if workload in COLUMNS:
        return _embedded(model, *COLUMNS[str(workload)])
    if model.rows is not None:
        raise UserError(f"A model of {workload} has its own rows", got=f"--input {model.rows}", fix="Leave it out")
    return _of_index(model) if workload == "lifelong" else _of_items(model)


def _of_items(model: Model) -> Vectors:
    weights = model.weights
    if "items" not in weights or "users" not in weights:
        backbone = model.config.get("backbone")
        raise UserError(
            f"{model.version.name} has no embeddings", got=f"backbone={backbone}", allowed="mf, lightgcn, ials"
        )
    predictor = model.predictor()
    items, users = (weights[name].astype(np.float32) for name in ("items", "users"))
    item_ids = predictor.item_names.of(np.arange(len(items))).tolist()
    user_ids = predictor.user_names.of(np.arange(len(users))).tolist()
    return Vectors(item_ids, items, users, "items", (user_ids, users))


def _of_index(model: Model) -> Vectors:
    try:
        predictor = model.predictor()
    except ValueError as error:
        raise UserError(f"The index of {model.version.name} cannot be read: {error}") from None
    if not predictor.index:
        raise UserError(f"The index of {model.version.name} has no rows")
    numbers = np.concatenate([docs for docs, _ in predictor.index])
    rows = _unit(np.concatenate([np.asarray(part) for _, part in predictor.index]))
    return Vectors([predictor.doc_ids[doc] for doc in numbers.tolist()], rows, rows, "documents")


def _embedded(model: Model, column: str, output: str) -> Vectors:
    """Vectors of the rows of ``--input``, by the registered model. Their ids: the column ``id``, else row numbers."""
    from mlflow.types import ColSpec

    if model.config.get("scoring") == "cross":
        raise UserError(f"{model.version.name} is a cross-encoder, which has no vectors")
    if model.rows is None:
        what = f"A model of {model.version.workload} has no rows of its own"
        raise UserError(what, fix=f"Name a file with a column {column}: --input")
    loaded = registry.load(model.settings, f"models:/{model.version.name}")
    spec = [one for one in columns_of(loaded.metadata.signature.inputs) or () if one.name == column]
    ids: list[Any] = []
    parts: list[NDArray[np.float32]] = []
    for frame in frames(model.rows, model.rows, [*spec, ColSpec("string", "id", required=False)]):
        batch = typed(frame, spec, model.rows, len(ids))
        if len(batch):
            embedded = predict_batch(loaded, model.version.name, batch, {}, len(ids))
            parts.append(np.stack(embedded[output].to_list()).astype(np.float32))
            ids += frame["id"].tolist() if "id" in frame else range(len(ids), len(ids) + len(batch))
    if not ids:
        raise UserError(f"{model.rows} has no rows")
    rows = _unit(np.concatenate(parts))
    return Vectors(_of_one_type(ids, model.rows), rows, rows, "rows")


def _of_one_type(ids: list[Any], source: str) -> list[Any]:
    """Ids of texts or of whole numbers; those of CSV are numbers where all are written as such. Raises UserError."""
    if source.endswith(".csv") and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", str(one)) for one in ids):
        return [int(one) for one in ids]
    for row, one in enumerate(ids, 1):
        if type(one) is not type(ids[0]) or one != one:
            raise UserError(f"The ids of {source} are not all texts or all whole numbers", got=f"{one!r} in row {row}")
    return ids


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (rows / np.maximum(norms, 1e-8)).astype(np.float32)
    return unit


def _product(model: Model) -> str:
    of_items = model.version.workload == "recommender"
    return (
        "The score is the inner product of a user and an item."
        if of_items
        else "Rows have length 1: the inner product is the cosine."
    )


def _write(ids: Sequence[Any], rows: NDArray[np.float32], file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    pq.write_table(pa.table({"id": pa.array(ids), "vector": vectors}), file)
