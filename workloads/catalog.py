"""Name -> workload, lazily. Third parties add theirs through the entry point group ``orchestrator.workloads``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from workloads.contract import Workload
    from workloads.published import Published

GROUP = "orchestrator.workloads"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a workload lives. ``params`` is apart from the class so that checking a name needs no PyTorch.

    ``published`` is a tuple of what :mod:`workloads.published` describes; None where nothing is.
    """

    params: str
    workload: str
    summary: str
    published: str | None = None

    def load_params(self) -> type[BaseModel]:
        return cast("type[BaseModel]", _load(self.params))

    def load(self) -> type[Workload]:
        return cast("type[Workload]", _load(self.workload))

    @property
    def folder(self) -> Path:
        """Where its module lies, which is not imported. Raises ImportError where there is none."""
        spec = find_spec(self.workload.partition(":")[0])
        if spec is None or spec.origin is None:
            raise ImportError(f"{self.workload} is not installed")
        return Path(spec.origin).parent

    def load_published(self) -> tuple[Published, ...]:
        return cast("tuple[Published, ...]", _load(self.published)) if self.published else ()


BUILT_IN = {
    "recommender": Entry(
        "workloads.recommender.params:Params",
        "workloads.recommender.workload:Recommender",
        "Collaborative filtering from implicit feedback: matrix factorisation and LightGCN.",
        "workloads.recommender.published:PUBLISHED",
    ),
    "simclr": Entry(
        "workloads.simclr.params:Params",
        "workloads.simclr.workload:SimCLR",
        "Contrastive learning of image encoders from two views of each image.",
        "workloads.simclr.published:PUBLISHED",
    ),
    "text_ranker": Entry(
        "workloads.text_ranker.params:Params",
        "workloads.text_ranker.workload:TextRanker",
        "BM25's candidates put in order by a cross-encoder or a bi-encoder.",
        "workloads.text_ranker.published:PUBLISHED",
    ),
    "bi_encoder": Entry(
        "workloads.bi_encoder.params:Params",
        "workloads.bi_encoder.workload:BiEncoder",
        "Sentence embeddings whose cosine is the similarity of two sentences.",
    ),
    "vera": Entry(
        "workloads.vera.params:Params",
        "workloads.vera.workload:Vera",
        "Retrieval that knows when it fails: ranking and confidence learnt apart, in stages.",
        "workloads.vera.published:PUBLISHED",
    ),
    "lifelong": Entry(
        "workloads.lifelong.params:Params",
        "workloads.lifelong.workload:Lifelong",
        "Retrieval over documents that arrive in sessions, with an index that is only ever appended to.",
        "workloads.lifelong.published:PUBLISHED",
    ),
}


@cache
def catalog() -> dict[str, Entry]:
    """Every workload by name. An entry point's object is an :class:`Entry`."""
    found = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        found[point.name] = point.load()
    return found


def _load(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
