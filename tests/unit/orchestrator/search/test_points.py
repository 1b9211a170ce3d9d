"""Points that are named, not sampled: only those of the space, each as the value that the space has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.config.spec import Search, SweepSpec
from orchestrator.search import points, spaces
from orchestrator.search.study import Study
from orchestrator.search.warm_start import enqueue_published
from workloads.contract import Objective
from workloads.recommender.params import Params


@pytest.mark.parametrize(
    ("distribution", "value", "taken"),
    [
        (FloatDistribution(0.1, 2), 1, 1.0),
        (FloatDistribution(0.1, 2), 0.1, 0.1),
        (FloatDistribution(0, 1, step=0.25), 0.75, 0.75),
        (IntDistribution(1, 64, log=True), 64, 64),
        (IntDistribution(2, 10, step=4), 6.0, 6),
        (CategoricalDistribution([None, False, "a", 2]), None, None),
        (CategoricalDistribution([None, False, "a", 2]), False, False),
        (CategoricalDistribution([1, True]), True, True),
        (FloatDistribution(0.1, 2), "1e-1", 0.1),
        (IntDistribution(1, 64), "64", 64),
        (CategoricalDistribution([False, True]), "true", True),
        (CategoricalDistribution([8, 16]), "16", 16),
    ],
)
def test_a_value_of_the_space_is_taken(distribution: Any, value: Any, taken: Any) -> None:
    found = points.contained(distribution, value)
    assert (found, type(found)) == (taken, type(taken))


@pytest.mark.parametrize(
    ("distribution", "value"),
    [
        (FloatDistribution(0.1, 2), 0.05),
        (FloatDistribution(0.1, 2), float("nan")),
        (FloatDistribution(0.1, 2), "one"),
        (FloatDistribution(0.1, 2), True),
        (FloatDistribution(0, 1, step=0.25), 0.8),
        (IntDistribution(1, 64), 2.5),
        (IntDistribution(2, 10, step=4), 8),
        (CategoricalDistribution([0, 1]), False),
        (CategoricalDistribution(["a"]), "b"),
    ],
)
def test_another_one_is_not(distribution: Any, value: Any) -> None:
    assert points.contained(distribution, value) is points._OUTSIDE


# What was published


def test_presets_and_defaults_that_lie_in_the_space_are_its_points() -> None:
    spec = SweepSpec(workload="recommender", fixed={"backbone": "mf"}, search=Search(space="dpl"))
    found = points.published(spec)
    assert list(found) == ["dpl_code"], "lr of the defaults is outside"
    assert found["dpl_code"]["lr"] == 0.001
    assert found["dpl_code"]["tau"] == 0.07


def test_they_are_the_first_trials(tmp_path: Path) -> None:
    spec = SweepSpec(workload="recommender", search=Search(space="mf", trials=2, warm_start=("published",)))
    objective, space = Objective("ndcg_at_20", "max"), spaces.load("recommender", "mf")
    study = Study(tmp_path, spec, [objective], space, conditional=False)
    assert enqueue_published(spec, study) == "The first trials are published settings: dpl_code, defaults"
    started = [study.next() for _ in range(3)]
    assert [trial and trial.params["lr"] for trial in started] == [0.001, Params().lr, None]
    nothing = spec.model_copy(update={"workload": "simclr", "search": Search(space="small", warm_start=("published",))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "published", lambda spec: {})
        assert enqueue_published(nothing, study) == "No published setting of simclr lies in this search space"


def test_a_preset_that_contradicts_what_is_fixed_is_left_out() -> None:
    spec = SweepSpec(
        workload="recommender", fixed={"backbone": "lightgcn", "negatives": 10}, search=Search(space="dpl")
    )
    assert "dpl_code" not in points.published(spec)
