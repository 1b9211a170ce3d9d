"""Change and search an index whose rows were written by registered models: ``orchestrator index``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.errors import UserError, one_line
from orchestrator.registry import versions
from orchestrator.registry.export.model import Model
from orchestrator.registry.retrieval import document_encoder, load_collection
from orchestrator.registry.tables import STREAM, check_output, frames, output, typed
from orchestrator.storage import disk
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

WORKLOAD = "lifelong"
ENCODERS = ("lifelong", "bi_encoder")
"""Workloads whose models can embed an index again."""

BATCH = 64
"""Texts encoded at once."""

QUERIES = 1024
"""Queries that search at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with the index in ``folder``, in the order of the fields. None: not given."""

    folder: Path
    delete: str | None = None
    embed_again: str | None = None
    share: float | None = None
    order: str | None = None
    batch: int | None = None
    add: str | None = None
    compact: bool = False
    search: str | None = None
    output: str | None = None
    k: int | None = None


class Registered:
    """The encoders of a registered version."""

    def __init__(self, settings: Settings, version: versions.Version) -> None:
        """Download it. Raises UserError for a model that is no encoder of queries and documents."""
        version.check_workload(ENCODERS, "is no encoder of queries and documents")
        self.version = version
        with tempfile.TemporaryDirectory(prefix="index-") as scratch:
            versions.download(settings, version, Path(scratch))
            model = Model(version, Path(scratch), settings)
            if model.config.get("scoring") == "cross":
                raise UserError(f"{version.name} is a cross-encoder of sentences, which has no vectors")
            try:
                self.predictor = model.predictor()
            except ValueError as error:
                raise UserError(f"The index of {version.name} cannot be read: {one_line(error)}") from None
            self.config = model.config
            self.weights = {name: model.weights[name] for name in ("index.models",) if name in model.weights}
            self._documents = document_encoder(model) or self.predictor.encoder

    @property
    def dim(self) -> int:
        return int(self.predictor.encoder.dim)

    @property
    def lineage(self) -> dict[str, Any] | None:
        lineage: dict[str, Any] | None = self.config.get("lineage")
        return lineage

    def queries(self, texts: Sequence[str]) -> torch.Tensor:
        return _unit_vectors(self.predictor.encoder, texts)

    def documents(self, texts: Sequence[str]) -> torch.Tensor:
        return _unit_vectors(self._documents, texts)

    def rows(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        """The session, documents and vectors of each part of the model's own index."""
        assert self.lineage is not None
        if "index.models" not in self.weights:
            sessions = [int(segment["session"]) for segment in self.lineage["segments"]]
            yield from ((session, *rows) for session, rows in zip(sessions, self.predictor.index, strict=True))
            return
        models = self.weights["index.models"]
        ((docs, vectors),) = self.predictor.index
        for session in sorted(set(models.tolist())):
            yield session, docs[models == session], vectors[models == session]


def _unit_vectors(encoder: Any, texts: Sequence[str]) -> torch.Tensor:
    import torch

    from workloads.encoders.pooling import normalised

    with torch.inference_mode():
        return normalised(encoder(list(texts), BATCH).vectors)


def run(settings: Settings, reference: str, request: Request, say: Callable[[str], None]) -> None:
    """Change the index in a folder as requested, search it, and say its state.

    The first change of a folder without an index copies that of the model. Raises UserError.
    """
    from workloads.data.errors import DataError

    _check(request)
    try:
        with disk.writing(request.folder, "to"):
            _run(settings, reference, request, say)
    except DataError as error:
        raise UserError(one_line(error)) from None


def _check(request: Request) -> None:
    """Refuse values out of bounds, and options of something that is not requested. Raises UserError."""
    orders = workload_loader.entry(WORKLOAD).load_index().orders
    for option, needs in (("share", "embed_again"), ("order", "embed_again"), ("batch", "embed_again"),
                          ("output", "search"), ("k", "search")):  # fmt: skip
        if getattr(request, option) is not None and getattr(request, needs) is None:
            raise UserError(f"--{option} needs --{needs.replace('_', '-')}", got=getattr(request, option))
    if request.share is not None and not 0 < request.share <= 1:
        raise UserError("--share is not valid", got=f"{request.share:g}", allowed="above 0, at most 1")
    if request.order is not None and request.order not in orders:
        raise UserError("--order is not valid", got=request.order, allowed=orders)
    for name, number in (("batch", request.batch), ("k", request.k)):
        if number is not None and number < 1:
            raise UserError(f"--{name} is not valid", got=number, allowed="1 or more")
    if request.search is not None:
        check_output(request.output or STREAM, request.search)


def _run(settings: Settings, reference: str, request: Request, say: Callable[[str], None]) -> None:
    folder = request.folder
    live_index = workload_loader.entry(WORKLOAD).load_index()
    version = versions.find(settings, reference)
    index = live_index(folder) if (folder / "index.json").exists() else None
    if index is None and not (request.delete or request.add or request.embed_again):
        raise UserError(f"There is no index in {folder}", fix="Begin one with --embed-again, --add or --delete")
    _check_model(index, version, folder)
    runs = {one["version"]: one["run"] for one in index.models} if index else {}

    @cache
    def registered(name: str) -> Registered:
        wanted = version if name == version.name else versions.find(settings, name)
        if runs.get(name, wanted.run_id) != wanted.run_id:
            raise UserError(f"The index in {folder} was written by another {name} than this store's")
        return Registered(settings, wanted)

    base = registered(index.models[0]["version"] if index else version.name)
    collection = {name: doc for doc, name in enumerate(base.predictor.doc_ids)}
    own = {name: doc for doc, (name, _) in index.texts.items()} if index else {}
    deleted = _numbers(request.delete, collection | own) if request.delete else None
    added = _documents(request.add) if request.add else None
    queries = [text for (text,) in _rows(request.search, "query")] if request.search else []
    newer = registered(versions.find(settings, request.embed_again).name) if request.embed_again else None
    if index is None:
        of_model = (base.rows(), base.dim, base.version.name, base.version.run_id)
        try:
            index = live_index.of_model(folder, base.lineage, *of_model)
        except FileExistsError:  # another process made it meanwhile
            _run(settings, reference, request, say)
            return
        say(f"Copied the index of {base.version.name}: {len(index)} documents")
    texts = _texts(settings, base)
    if deleted is not None:
        before = len(index)
        index.delete(deleted)
        say(f"Deleted {before - len(index)} documents")
    if newer:
        session = index.join(newer.version.name, newer.version.run_id, newer.dim, newer.lineage)
        order = request.order or live_index.orders[0]
        for left in index.embed(session, request.share or 1.0, order, newer, texts, request.batch or 1024):
            say(f"Embedding again with {newer.version.name}: {left} documents left")
    if added is not None:
        last = index.models[-1]
        fresh = index.add(last["session"], added, collection, registered(last["version"]))
        say(f"Added {fresh} documents and changed {len(added) - fresh}, embedded by {last['version']}")
    if request.compact:
        index.compact()
    if request.search:
        names = {doc: name for name, doc in collection.items()} | {doc: name for doc, (name, _) in index.texts.items()}
        named = {one["session"]: one["version"] for one in index.models}
        _search(index, request, queries, lambda session: registered(named[session]), texts, names)
    if not request.search or request.output:
        say(f"{folder}: {len(index)} documents, {_state(index)}")


def _check_model(index: Any, version: versions.Version, folder: Path) -> None:
    """Check that a version has an index, and if there is one already, that it is one of its models."""
    if index is None:
        version.check_workload((WORKLOAD,), "has no index of documents")
        return
    models = [one["version"] for one in index.models]
    if (version.name, version.run_id) not in [(one["version"], one["run"]) for one in index.models]:
        raise UserError(
            f"The index in {folder} is not of {version.name}", got=f"one of {', '.join(models) or 'a run'}",
            fix="Name one of its models, or another folder",
        )  # fmt: skip


def _texts(settings: Settings, base: Registered) -> Callable[[NDArray[np.int64]], Sequence[str]]:
    """The texts of the collection's documents, which is loaded when the first are needed."""

    @cache
    def docs() -> Any:
        name = base.config["dataset"]
        data = load_collection(name, settings)
        if data.doc_ids.to_pylist() != base.predictor.doc_ids:
            raise UserError(f"The documents of {name} here are not those that {base.version.name} was trained with")
        return data.docs

    return lambda numbers: docs().take(numbers).to_pylist()


def _rows(source: str, *columns: str) -> Iterator[tuple[str, ...]]:
    """The rows of a file with these columns of text; an empty cell is an empty text. Raises UserError."""
    from mlflow.types import ColSpec

    if source != STREAM and not Path(source).is_file():
        raise UserError(f"The input {source} does not exist", fix="Check the path")
    spec = [ColSpec("string", column) for column in columns]
    name = "standard input" if source == STREAM else source
    before = 0
    for frame in frames(source, name, spec):
        rows = typed(frame, spec, name, before)
        before += len(rows)
        yield from rows.fillna("").itertuples(index=False, name=None)
    if not before:
        raise UserError(f"{name} has no rows")


def _numbers(source: str, number: Mapping[str, int]) -> NDArray[np.int64]:
    import numpy as np

    names = [name for (name,) in _rows(source, "document")]
    if unknown := [name for name in names if name not in number]:
        raise UserError(
            f"{source} names documents that the index does not know ({len(unknown)})", got=", ".join(unknown[:3]),
            fix="Nothing was changed: correct the column document",
        )  # fmt: skip
    return np.array([number[name] for name in names], np.int64)


def _documents(source: str) -> dict[str, str]:
    documents: dict[str, str] = {}
    for name, text in _rows(source, "document", "text"):
        if name in documents or not name or not text.strip():
            what = "occurs twice" if name in documents else "has no text" if name else "has no name"
            fix = "Nothing was changed: correct the file"
            raise UserError(f"A document of {source} {what}", got=name or text, fix=fix)
        documents[name] = text
    return documents


def _search(
    index: Any, request: Request, given: Sequence[str], encoders: Callable[[int], Registered],
    texts: Callable[[NDArray[np.int64]], Sequence[str]], names: Mapping[int, str],
) -> None:  # fmt: skip
    """Write the best documents of each query that has a text. Raises UserError."""
    import pandas as pd

    if not len(index):
        raise UserError(f"The index in {request.folder} has no documents")
    queries = [text for text in given if text.strip()]
    with output(request.output or STREAM) as write:
        for first in range(0, len(queries), QUERIES):
            part = queries[first : first + QUERIES]
            scores, docs = index.search(part, request.k or 10, encoders, texts)
            depth = docs.shape[1]
            columns = {
                "query": [query for query in part for _ in range(depth)],
                "rank": [*range(1, depth + 1)] * len(part),
                "document": [names[doc] for doc in docs.ravel().tolist()],
                "score": scores.ravel(),
            }
            write(pd.DataFrame(columns))
        if not queries:
            write(pd.DataFrame(columns=["query", "rank", "document", "score"]))


def _state(index: Any) -> str:
    """The number of rows by each model."""
    named = {one["session"]: one["version"] for one in index.models}
    counts: dict[str, int] = {}
    for session in index.sessions:
        name = named.get(session, f"earlier sessions of {index.models[0]['version']}")
        counts[name] = counts.get(name, 0) + len(index.docs(session))
    return ", ".join(f"{count} by {name}" for name, count in counts.items())
