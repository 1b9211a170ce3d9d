"""Named points of a search space: values inside it get its types, and others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.config.spec import Search, SweepSpec
from orchestrator.errors import UserError
from orchestrator.search import points, spaces
from orchestrator.search.study import Study
from orchestrator.search.warm_start import enqueue_published
from workloads.contract import Objective


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
def test_value_inside_the_distribution_is_returned_in_its_type(distribution: Any, value: Any, taken: Any) -> None:
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
def test_value_outside_the_distribution_is_rejected(distribution: Any, value: Any) -> None:
    assert points.contained(distribution, value) is points._OUTSIDE


def test_a_point_of_a_branch_that_the_survey_lacks_is_taken() -> None:
    """The survey's 32 draws of a space with fourteen losses do not find all of them."""
    space = points.Points(SweepSpec(workload="recommender", search=Search(space="everything")))
    assert "drop_steps" not in space._survey.distributions
    point = {"loss": "denoise_truncated", "drop_steps": "2000"}
    assert space.checked(point) == {"loss": "denoise_truncated", "drop_steps": 2000}
    assert space.checked({"beta": "1.7", "loss": "hcl"}) == {"beta": 1.7, "loss": "hcl"}
    with pytest.raises(UserError, match=r"beta is outside the search space: got 1.7; .*step 0.1"):
        space.checked({"beta": "1.7", "loss": "bcl"})
    with pytest.raises(UserError, match="Unknown searched parameter: got 'drop_steps'"):
        space.checked({"loss": "bcl", "drop_steps": "2000"})


def test_parameter_absent_from_the_branch_of_the_point_is_refused() -> None:
    """Such a parameter would be ignored."""
    space = points.Points(SweepSpec(workload="recommender", search=Search(space="everything")))
    with pytest.raises(UserError, match=r"tau is not searched together with the other values: got tau=0.1; .*loss"):
        space.checked({"loss": "bpr", "tau": "0.1"})


# Published points


def test_published_points_exclude_presets_and_defaults_outside_the_space() -> None:
    spec = SweepSpec(workload="recommender", fixed={"backbone": "mf"}, search=Search(space="dpl"))
    found = points.published(spec)
    assert list(found) == ["dpl_code"], "lr of the defaults is outside the space"
    assert found["dpl_code"]["lr"] == 0.001
    assert found["dpl_code"]["tau"] == 0.07


@pytest.mark.parametrize(
    ("fixed", "space", "names"),
    [
        ({}, "mf", ["thesis-4.2 RNS (ml-100k mf)"]),
        ({"sampler": "dns"}, "mf", ["thesis-4.2 DNS (ml-100k mf)"]),
        ({}, "sgd_bns", ["thesis-4.2 BNS, SGD (ml-100k mf)", "thesis-4.3 BNS-3, SGD (ml-100k mf)"]),
    ],
)
def test_published_table_rows_are_points_of_their_loss_and_sampler_only(
    fixed: dict[str, Any], space: str, names: list[str]
) -> None:
    """``mf`` trains BPR, so DPL's preset is not a published setting of it, although its values are in the space."""
    spec = SweepSpec(workload="recommender", fixed=fixed, search=Search(space=space))
    found = points.published(spec)
    assert list(found) == names
    assert found[names[0]]["lr"] == (0.01 if space == "sgd_bns" else 0.002)


@pytest.mark.slow
def test_published_points_are_the_first_trials_each_once(tmp_path: Path) -> None:
    spec = SweepSpec(workload="recommender", search=Search(space="sgd_bns", trials=3, warm_start=("published",)))
    objective, space = Objective("ndcg_at_20", "max"), spaces.load("recommender", "sgd_bns")
    study = Study(tmp_path, spec, [objective], space, conditional=False)
    first, second = points.published(spec).items()
    study.optuna_study.enqueue_trial(first[1], user_attrs={"published": first[0]})  # then the driver was killed
    line = enqueue_published(spec, study)
    assert line == f"The first trials are published settings: {first[0]}, {second[0]}"
    assert enqueue_published(spec, study) == line
    assert [trial.user_attrs["published"] for trial in study.trials] == [first[0], second[0]]
    started = study.next()
    assert started is not None
    assert started.params["bns_prior"] == "popularity"
    small = spec.model_copy(update={"search": spec.search.model_copy(update={"trials": 1})})
    assert enqueue_published(small, study).endswith("all of the 1 trials (2 settings): nothing else is searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "published", lambda spec: {})
        assert enqueue_published(spec, study) == "No published setting of recommender lies in this search space"


def test_preset_that_contradicts_fixed_parameters_is_left_out() -> None:
    spec = SweepSpec(
        workload="recommender", fixed={"backbone": "lightgcn", "negatives": 10}, search=Search(space="dpl")
    )
    assert "dpl_code" not in points.published(spec)
