"""Evaluate a registered model on collections of queries: metrics, and runs and qrels in TREC's form."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.errors import UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.provenance import record as provenance
from orchestrator.registry import versions
from orchestrator.registry.export.model import Model
from orchestrator.storage import disk, look_ledger, records, remote
from orchestrator.storage.look_ledger import Look
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from workloads.data.retrieval.types import Retrieval
    from workloads.encoders.served_text import ServedTextEncoder

MEAN = "mean"
CUTOFFS = (10, 100)
SHOWN = ("ndcg_at_10", "mrr_at_10", "recall_at_100", "map")
BATCH = 64

GRAPH = "graph_questions"
"""The kind of data whose questions have triples of a graph as candidates."""

QRELS = "qrels.trec"
METRICS = "metrics.json"
TABLE = "run.parquet"


@dataclass
class Ranked:
    """Lists of Q queries: numbers of documents (Q, K), best first, -1 after the end, and their scores.

    ``columns``: further values of each place, (Q, K), such as a confidence. ``first`` are the lists that were reranked.
    """

    docs: NDArray[np.int64]
    scores: NDArray[np.float64]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    first: Ranked | None = None


def evaluate(
    settings: Settings, reference: str, datasets: Sequence[str], target: Path, depth: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Rank the test queries of each collection with a version, and write the files of each into a folder of ``target``.

    Returns the metrics by collection, with their ``mean``. Raises UserError for a model that ranks no documents, a
    collection that is missing, damaged or of another kind, and a folder that is not empty.
    """
    if depth < 1:
        raise UserError("--depth is not valid", got=depth, allowed="1 or more")
    disk.check_empty(target)
    version = versions.find(settings, reference)
    version.check_workload(RANKERS, "ranks no documents")
    collections = _collections(datasets, settings, str(version.workload))
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch, disk.writing(target, "to"):
        files = Path(scratch) / "model"
        files.mkdir()
        versions.download(settings, version, files)
        (Path(scratch) / "record").mkdir()
        spec = versions.record_json(settings, version, provenance.SPEC, Path(scratch) / "record")
        if not spec:
            raise UserError(f"{version.name} has no record, so the queries that it was trained on are not known")
        model = Model(version, files, settings, None, spec.get("params", {}))
        for name in collections.values():
            check_candidates(model, name)
        partial = Path(scratch) / "written"
        for label, name in collections.items():
            _note_look(settings, version, name)
            measured[label], count = rank_collection(model, name, partial / label, depth)
            say(f"{label}: {_line(measured[label])} ({count} queries)")
        if len(measured) > 1:
            measured[MEAN] = {
                name: sum(values[name] for values in measured.values()) / len(measured)
                for name in next(iter(measured.values()))
            }
            say(f"{MEAN}: {_line(measured[MEAN])} ({len(collections)} collections)")
        (partial / METRICS).write_text(json.dumps(measured, indent=1))
        shutil.copytree(partial, target, dirs_exist_ok=True)
    return measured


def rank_collection(model: Model, name: str, folder: Path, depth: int) -> tuple[dict[str, float], int]:
    """Rank the test queries of a collection and write the files to ``folder``. Returns metrics and number of queries.

    Raises UserError.
    """
    data = load_collection(name, model.settings)
    queries = _queries(data, name, model)
    ranked = RANKERS[str(model.version.workload)](model, data, queries, depth, name)
    folder.mkdir(parents=True)
    _write(folder, data, queries, ranked, model.version.name.replace(" ", "_"))
    return _measured(data, queries, ranked), len(queries)


def _collections(datasets: Sequence[str], settings: Settings, workload: str) -> dict[str, str]:
    """The datasets by the names of their folders, each checked. Raises UserError."""
    from workloads.data import datasets as catalogue
    from workloads.data.errors import DataError

    kinds = ("retrieval", GRAPH) if workload == "vera" else ("retrieval",)
    collections: dict[str, str] = {}
    for given in datasets:
        name = str(Path(given).expanduser().absolute()) if Path(given).expanduser().is_dir() else given
        label = Path(name).name
        if label in collections or label == MEAN:
            raise UserError("Two collections have one name, which their folders would have", got=label)
        try:
            catalogue.check_kind(name, *kinds)
            catalogue.check(name, settings.data)
        except DataError as error:
            raise UserError(one_line(error)) from None
        collections[label] = name
    return collections


def _is_graph(name: str) -> bool:
    from workloads.data import datasets as catalogue

    return catalogue.dataset(name).kind == GRAPH


def check_candidates(model: Model, name: str) -> None:
    """Check that a model of VERA has learned from candidates of this kind of data. Raises UserError."""
    if model.version.workload != "vera" or bool(model.config["of_graph"]) == _is_graph(name):
        return
    learned, others = (
        ("facts of a graph", "documents") if model.config["of_graph"] else ("documents", "facts of a graph")
    )
    raise UserError(
        f"{model.version.name} ranks {learned}, and the candidates of {name} are {others}",
        allowed="questions over a graph" if model.config["of_graph"] else "retrieval collections",
    )


def load_collection(name: str, settings: Settings) -> Retrieval:
    from workloads.data.errors import DataError
    from workloads.data.questions.collection import as_collection
    from workloads.data.questions.load import load_questions
    from workloads.data.retrieval.load import load_retrieval

    try:
        if _is_graph(name):
            return as_collection(load_questions(name, settings.data))
        return load_retrieval(name, settings.data, "skip")
    except DataError as error:
        raise UserError(one_line(error)) from None


def _queries(data: Retrieval, name: str, model: Model) -> NDArray[np.int64]:
    """The source's own test queries. Without them, those that the model did not train on; of another collection all."""
    import numpy as np

    from workloads.data import datasets as catalogue
    from workloads.data.retrieval.types import PARTS, split_queries

    tested = np.flatnonzero(data.answered & (data.parts == PARTS.index("test")))
    if len(tested):
        return tested
    params = model.parameters
    own = params.get("dataset")
    if own is not None and _is_one(own, name):
        trained = model.version.tags.get("orchestrator.data_fingerprint", "none")
        if trained != "none" and trained != catalogue.fingerprint(own, model.settings.data):
            raise UserError(
                f"{model.version.name} was trained on another state of {name}, or by a version of the program that "
                "splits it differently, so the queries that it was trained on are not known", got="no test part",
                fix="Give the collection a test part of its own, or train again",
            )  # fmt: skip
        shares = {part: params[f"split_{part}"] for part in ("validation", "test") if params.get(f"split_{part}")}
        return split_queries(data, seed=params.get("split_seed", 0), **shares).test
    return np.flatnonzero(data.answered)


def _is_one(own: str, name: str) -> bool:
    """Whether two names are of one collection: a folder has several, with a slash at its end or through a link."""
    folders = Path(own), Path(name)
    return own == name or (
        all(path.is_absolute() and path.exists() for path in folders) and folders[0].samefile(folders[1])
    )


def _note_look(settings: Settings, version: versions.Version, name: str) -> None:
    """Add a row to the ledger of looks at the collection's test queries. Raises UserError if it cannot be written."""
    from workloads.data import datasets as catalogue

    look = Look(
        storage=settings.storage, workload=str(version.workload), dataset=name,
        fingerprint=catalogue.fingerprint(name, settings.data), run=version.name, kind="evaluate",
        selection="a registered model was given", spec=version.tags.get("orchestrator.fingerprint", "none"), seed=0,
        by=records.user(), host=socket.gethostname(),
    )  # fmt: skip
    with remote.answering(remote.uri_of(settings.storage) or str(settings.storage)):
        private_files.make_folder(settings.storage)
        look_ledger.append(look, int(version.epochs or 0))


def _reranked(model: Model, data: Retrieval, queries: NDArray[np.int64], depth: int, name: str) -> Ranked:
    """BM25's candidates in the order of a ranker that scores pairs of texts."""
    import numpy as np
    import pandas as pd

    from workloads.data.retrieval.bm25 import candidates

    document = "candidate" if model.version.workload == "vera" else "document"
    listed = candidates(name, model.settings.data, data, depth)
    docs = listed.docs[queries].astype(np.int64)
    first = Ranked(docs, listed.scores[queries].astype(np.float64))

    def inputs(row: int, count: int) -> pd.DataFrame:
        query = data.queries[int(queries[row])].as_py()
        texts = data.docs.take(docs[row, :count]).to_pylist()
        return pd.DataFrame({"query": [query] * count, document: texts, "bm25": first.scores[row, :count]})

    return replace(_ordered(model, docs, inputs), first=first)


def _of_vera(model: Model, data: Retrieval, queries: NDArray[np.int64], depth: int, name: str) -> Ranked:
    """BM25's candidates of a collection, or the triples around the topic of a question, as in training."""
    if not model.config["of_graph"]:
        return _reranked(model, data, queries, depth, name)
    import pandas as pd

    candidates = workload_loader.entry("vera").load_candidates()
    docs, inputs = candidates(name, model.settings.data, queries, model.parameters, model.config["code_names"])
    ranked = _ordered(model, docs, lambda row, count: pd.DataFrame(inputs(row)))
    columns = {column: values[:, :depth] for column, values in ranked.columns.items()}
    return Ranked(ranked.docs[:, :depth], ranked.scores[:, :depth], columns)


def _ordered(model: Model, docs: NDArray[np.int64], inputs: Callable[[int, int], pd.DataFrame]) -> Ranked:
    """Candidates ``docs`` (Q, K), -1 after the end, by the model's scores of ``inputs(row, number of candidates)``."""
    import numpy as np

    predictor = model.predictor()
    ranked = Ranked(np.full_like(docs, -1), np.full(docs.shape, -np.inf))
    more: dict[str, NDArray[Any]] = {}
    for row in range(len(docs)):
        count = int((docs[row] >= 0).sum())
        if not count:
            continue
        frame = inputs(row, count)
        output = _predicted(model, predictor, frame)
        order = np.argsort(-output["score"].to_numpy(), kind="stable")
        ranked.docs[row, :count] = docs[row, order]
        ranked.scores[row, :count] = output["score"].to_numpy()[order]
        for column in output.columns.difference([*frame.columns, "score", "rank", "reason"]):
            values = output[column].to_numpy()
            more.setdefault(column, np.full(docs.shape, np.nan))[row, :count] = values[order]
    return replace(ranked, columns=more)


def _predicted(model: Model, predictor: Any, frame: pd.DataFrame) -> pd.DataFrame:
    try:
        output: pd.DataFrame = predictor.predict(frame, batch_size=BATCH)
    except ValueError as error:
        raise UserError(f"{model.version.name} refuses the collection: {one_line(error)}") from None
    return output


def _searched(model: Model, data: Retrieval, queries: NDArray[np.int64], depth: int, name: str) -> Ranked:
    """The documents of the whole collection that are nearest by cosine."""
    import numpy as np
    import torch

    from workloads.encoders.pooling import normalised
    from workloads.encoders.search import exact_topk

    if model.config.get("scoring") == "cross":
        raise UserError(f"{model.version.name} is a cross-encoder of sentences, which cannot search")
    predictor = model.predictor()
    documents = document_encoder(model) or predictor.encoder
    with torch.inference_mode():
        vectors, empty, _ = predictor.encoder(data.queries.take(queries).to_pylist(), BATCH)
        docs = documents(data.docs.to_pylist(), BATCH).vectors
        scores, rows = exact_topk(normalised(vectors), normalised(docs), depth)
    ranked = Ranked(rows.cpu().numpy().copy(), scores.double().cpu().numpy().copy())
    ranked.docs[empty] = -1
    ranked.scores[empty] = -np.inf
    return ranked


def document_encoder(model: Model) -> ServedTextEncoder | None:
    """The encoder of documents of a model of lifelong with ``encoders=apart``, which is with its training weights."""
    from safetensors.numpy import load_file

    from orchestrator.registry import servable
    from workloads.encoders.served_text import ServedTextEncoder

    file = model.folder / servable.TRAINING
    weights = load_file(file) if model.version.workload == "lifelong" and file.exists() else {}
    prefix = "documents."
    if not any(name.startswith(prefix) for name in weights):
        return None
    config = model.config
    tokenizer = model.weights["tokenizer"].tobytes().decode()
    return ServedTextEncoder(weights, prefix, config["model"], tokenizer, int(config["max_length"]), config["pooling"])


Ranker = Callable[["Model", "Retrieval", "NDArray[np.int64]", int, str], Ranked]
RANKERS: Mapping[str, Ranker] = {
    "text_ranker": _reranked, "vera": _of_vera, "lifelong": _searched, "bi_encoder": _searched,
}  # fmt: skip


def _measured(data: Retrieval, queries: NDArray[np.int64], ranked: Ranked) -> dict[str, float]:
    """Means over the queries; those of the reranked lists begin with ``bm25_``."""
    metrics = {name: float(values.mean()) for name, values in measures(data, queries, ranked).items()}
    if ranked.first is not None:
        first = measures(data, queries, ranked.first)
        metrics |= {f"bm25_{name}": float(values.mean()) for name, values in first.items()}
    return metrics


def measures(data: Retrieval, queries: NDArray[np.int64], ranked: Ranked) -> dict[str, NDArray[np.float64]]:
    """The measures of each query, (Q,); see :mod:`workloads.metrics.retrieval`."""
    import torch

    from workloads.metrics.retrieval import per_query

    sides = ranked.scores, data.grades(queries[:, None], ranked.docs), data.judged_grades(queries)
    scores, listed, all_grades = map(torch.from_numpy, sides)
    return {name: values.double().numpy() for name, values in per_query(scores, listed, all_grades, CUTOFFS).items()}


def _write(folder: Path, data: Retrieval, queries: NDArray[np.int64], ranked: Ranked, tag: str) -> None:
    """``run.trec``, ``bm25.trec`` of reranked lists, ``qrels.trec``, and ``run.parquet`` with further columns."""
    import pandas as pd

    from workloads.data.errors import DataError
    from workloads.data.retrieval.runs import write_qrels, write_run

    numbers = queries.tolist()
    try:
        write_run(folder / "run.trec", data, numbers, ranked.docs, ranked.scores, tag)
        if ranked.first is not None:
            write_run(folder / "bm25.trec", data, numbers, ranked.first.docs, ranked.first.scores, "bm25")
        write_qrels(folder / QRELS, data, numbers)
    except DataError as error:
        raise UserError(one_line(error)) from None
    rows, places = (ranked.docs >= 0).nonzero()
    values = {
        "query": data.query_ids.take(queries[rows]).to_pylist(),
        "document": data.doc_ids.take(ranked.docs[rows, places]).to_pylist(),
        "rank": places + 1,
        "score": ranked.scores[rows, places],
    }
    more = {name: column[rows, places] for name, column in ranked.columns.items()}
    pd.DataFrame(values | more).to_parquet(folder / TABLE)


def _line(metrics: Mapping[str, float]) -> str:
    names = [*SHOWN, *(["bm25_ndcg_at_10"] if "bm25_ndcg_at_10" in metrics else [])]
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in names)
