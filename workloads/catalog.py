"""Workloads by name, loaded lazily. Other packages add theirs by the entry point group ``orchestrator.workloads``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from workloads.contract import Workload
    from workloads.published import Published

GROUP = "orchestrator.workloads"


@dataclass(frozen=True, slots=True)
class Entry:
    """Import paths of a workload. ``params`` is separate from the class, so that checking parameters needs no PyTorch.

    ``published`` names a tuple of objects of :mod:`workloads.published`, or is None. ``spaces`` is a module whose
    functions are search spaces; the default is the module of ``search_spaces`` with the workload's name, if any.
    ``data`` are the kinds of built-in datasets that the parameter ``dataset`` can name; these are checked before
    training starts. If it is empty, ``dataset`` is an ordinary parameter. ``predictor`` is the file of the served
    model, in the folder of the workload's module; None if no model is served. ``candidates`` is a function that gives
    the candidates of questions over a graph. ``index`` is the class of the index of registered models that
    ``orchestrator index`` changes.
    """

    params: str
    workload: str
    summary: str
    published: str | None = None
    spaces: str | None = None
    data: tuple[str, ...] = ()
    predictor: str | None = "predictor.py"
    candidates: str | None = None
    index: str | None = None

    def load_params(self) -> type[BaseModel]:
        return cast("type[BaseModel]", resolve_name(self.params))

    def load(self) -> type[Workload]:
        return cast("type[Workload]", resolve_name(self.workload))

    @property
    def folder(self) -> Path:
        """The folder of its module, which is not imported. Raises ImportError if it is not installed."""
        spec = find_spec(self.workload.partition(":")[0])
        if spec is None or spec.origin is None:
            raise ImportError(f"{self.workload} is not installed")
        return Path(spec.origin).parent

    def load_candidates(self) -> Callable[..., Any]:
        assert self.candidates is not None
        return cast("Callable[..., Any]", resolve_name(self.candidates))

    def load_index(self) -> type[Any]:
        assert self.index is not None
        return cast("type[Any]", resolve_name(self.index))

    def load_published(self) -> tuple[Published, ...]:
        return cast("tuple[Published, ...]", resolve_name(self.published)) if self.published else ()


BUILT_IN = {
    "recommender": Entry(
        "workloads.recommender.params:Params",
        "workloads.recommender.workload:Recommender",
        "Recommendation from implicit feedback: matrix factorisation, LightGCN, baselines.",
        "workloads.recommender.published:PUBLISHED",
        data=("interactions",),
    ),
    "simclr": Entry(
        "workloads.simclr.params:Params",
        "workloads.simclr.workload:SimCLR",
        "Contrastive learning of image encoders from two views of each image.",
        "workloads.simclr.published:PUBLISHED",
        data=("images",),
    ),
    "text_ranker": Entry(
        "workloads.text_ranker.params:Params",
        "workloads.text_ranker.workload:TextRanker",
        "BM25's candidates put in order by a cross-encoder or a bi-encoder.",
        "workloads.text_ranker.published:PUBLISHED",
        data=("retrieval",),
    ),
    "bi_encoder": Entry(
        "workloads.bi_encoder.params:Params",
        "workloads.bi_encoder.workload:BiEncoder",
        "Sentence embeddings whose cosine is the similarity of two sentences.",
        data=("sentence_pairs",),
    ),
    "vera": Entry(
        "workloads.vera.params:Params",
        "workloads.vera.workload:Vera",
        "Retrieval with a calibrated probability of success; ranking and confidence are trained in separate stages.",
        "workloads.vera.published:PUBLISHED",
        data=("graph_questions", "retrieval"),
        candidates="workloads.vera.graph_candidates:graph_candidates",
    ),
    "lifelong": Entry(
        "workloads.lifelong.params:Params",
        "workloads.lifelong.workload:Lifelong",
        "Retrieval over documents that arrive in sessions, with an index that is only ever appended to.",
        "workloads.lifelong.published:PUBLISHED",
        data=("retrieval",),
        index="workloads.lifelong.live_index:LiveIndex",
    ),
}


def catalog() -> dict[str, Entry]:
    """All workloads by name: the built-in ones and those of installed packages that can be loaded."""
    return BUILT_IN | {name: entry for name, entry in offered().items() if isinstance(entry, Entry)}


def broken() -> dict[str, str]:
    """Errors of the workloads of installed packages that cannot be loaded, by name."""
    return {name: error for name, error in offered().items() if isinstance(error, str)}


def package(name: str) -> Distribution | None:
    """The installed package that provides a workload; None for a built-in one."""
    points = [] if name in BUILT_IN else list(entry_points(group=GROUP, name=name))
    return points[0].dist if points else None


@cache
def offered() -> dict[str, Entry | str]:
    """The entry points of installed packages, each as an :class:`Entry` or as an error message."""
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return {name: _loaded(name, same) for name, same in points.items()}


def _loaded(name: str, points: Sequence[EntryPoint]) -> Entry | str:
    offering = " and ".join(f"{point.dist.name} {point.dist.version}" for point in points if point.dist)
    if name in BUILT_IN:
        return f"{offering} offers it, and the name is one of ours"
    if len(points) > 1:
        return f"{offering} both offer it"
    try:
        entry = points[0].load()
    except Exception as error:  # a broken package must not affect other workloads
        return f"{type(error).__name__}: {error} (in {offering})"
    if not isinstance(entry, Entry):
        return f"{points[0].value} is not a workloads.catalog.Entry (in {offering})"
    return entry
