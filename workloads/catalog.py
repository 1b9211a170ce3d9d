"""Name -> workload, lazily. Third parties add theirs through the entry point group ``orchestrator.workloads``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from workloads.contract import Workload

GROUP = "orchestrator.workloads"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a workload lives. ``params`` is apart from the class so that checking a name needs no PyTorch."""

    params: str
    workload: str
    summary: str

    def load_params(self) -> type[BaseModel]:
        return cast("type[BaseModel]", _load(self.params))

    def load(self) -> type[Workload]:
        return cast("type[Workload]", _load(self.workload))


BUILT_IN = {
    "recommender": Entry(
        "workloads.recommender.params:Params",
        "workloads.recommender.workload:Recommender",
        "Collaborative filtering from implicit feedback: matrix factorisation and LightGCN.",
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
