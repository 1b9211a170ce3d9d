"""Lifelong retrieval passes the conformance suite, with an index in memory and in files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.readme_tree import ROOT
from tests.support.spoiled import prepared_from
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import Retrieval
from workloads.lifelong import dataset, workload
from workloads.lifelong.workload import Lifelong
from workloads.testing import Conformance

SMALL = {
    "max_length": 24, "batch_size": 8, "lr": 1e-3, "split_sessions": 1, "n_new": 4, "candidates": 12, "n_memory": 2,
    "capacity": 4,
}  # fmt: skip


class LifelongConformance(Conformance):
    workload: ClassVar[type[Any]] = Lifelong
    weights: ClassVar[str] = "encoder"
    earlier: ClassVar[tuple[Path, ...]] = (ROOT / "tests/recorded/predictors/lifelong.py",)
    ranked: ClassVar[tuple[str, ...]] = ("*_at_*", "forgetting", "forward_transfer")
    compared: ClassVar[Mapping[str, Any]] = {"lr": 1e-6}

    @pytest.fixture(autouse=True)
    def _watch_stands_still(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Fix the clock, since the state contains the seconds of embedding, which differ in each run."""
        monkeypatch.setattr(workload, "time", SimpleNamespace(perf_counter=lambda: 0.0))

    def spoiled_test(self) -> AbstractContextManager[None]:
        """Drop the judgements of every second test query."""

        def spoiled(name: str, root: Path, unknown: Any = "refuse") -> Retrieval:
            whole = load_retrieval(name, root, unknown)
            tested = np.flatnonzero(whole.parts == 3)[::2]
            kept = whole.judgements[~np.isin(whole.judgements[:, 0], tested)]
            return replace(whole, judgements=kept)

        return prepared_from(dataset, load_retrieval=spoiled)


class TestRankingAlignment(LifelongConformance):
    params: ClassVar[Mapping[str, Any]] = SMALL


class TestApartWithArrivingQueries(LifelongConformance):
    """Separate encoders of documents and queries. Queries are judged from the session in which they arrive."""

    params: ClassVar[Mapping[str, Any]] = {
        **SMALL, "encoders": "apart", "split_queries": "arriving", "diversity": "whole",
    }  # fmt: skip
    ranked: ClassVar[tuple[str, ...]] = (*LifelongConformance.ranked, "*arriving_*")


class TestEverythingAnew(LifelongConformance):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "memory": "ocs", "compatible": "no", "new": "random"}
    test_two_processes_equal_one = None  # type: ignore[assignment]  # expensive; the other classes run it
