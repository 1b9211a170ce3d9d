"""``objective=``: the chosen direction, refused values and the error of an unknown metric."""

from __future__ import annotations

import pytest

from orchestrator.config import objectives
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError
from workloads.contract import Objective

NDCG = Objective("ndcg_at_20", "max", refit=True, test_epochs=(3, 6))
LOSS = Objective("loss", "min")


def test_declared_direction_is_used_and_the_opposite_one_is_refused() -> None:
    """The direction of a declared metric may be omitted, and the opposite one is refused."""
    declared = {"gini_at_20": "min"}
    for given in ("gini_at_20", "gini_at_20:min"):
        (found,) = objectives.chosen(NDCG, (given,), declared)
        assert (found.metric, found.direction) == ("gini_at_20", "min")
    with pytest.raises(UserError, match=r"The better direction of gini_at_20 is min: got .*allowed: gini_at_20:min"):
        objectives.chosen(NDCG, ("gini_at_20:max",), declared)
    with pytest.raises(UserError, match=r"The better direction of ndcg_at_20 is max: got .*allowed: ndcg_at_20:max"):
        objectives.chosen(NDCG, ("ndcg_at_20:min",), declared)


def test_a_pattern_declares_the_direction_of_several_metrics() -> None:
    declared = {"gini_at_*": "min", "gini_at_1": "max"}
    found = objectives.chosen(NDCG, ("gini_at_50", "gini_at_1", "recall:max"), declared)
    assert [objective.direction for objective in found] == ["min", "max", "max"]
    with pytest.raises(UserError, match=r"The better direction of gini_at_50 is min: got .*allowed: gini_at_50:min"):
        objectives.chosen(NDCG, ("gini_at_50:max",), declared)
    with pytest.raises(UserError, match="gini is not declared"):
        objectives.chosen(NDCG, ("gini",), declared)


def test_objectives_of_the_workload_are_the_default() -> None:
    assert objectives.chosen(NDCG, ()) == (NDCG,)
    assert objectives.chosen((NDCG, LOSS), ()) == (NDCG, LOSS)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("ndcg_at_20",), [("ndcg_at_20", "max")]),
        (("ndcg_at_20:max",), [("ndcg_at_20", "max")]),
        (("recall_at_20:max",), [("recall_at_20", "max")]),
        (("loss", "ndcg_at_20"), [("loss", "min"), ("ndcg_at_20", "max")]),
    ],
)
def test_direction_comes_from_the_workload_or_the_user(asked: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    found = objectives.chosen((NDCG, LOSS), asked)
    assert [(objective.metric, objective.direction) for objective in found] == expected


def test_refit_and_test_epochs_are_kept_for_another_metric() -> None:
    (found,) = objectives.chosen(NDCG, ("recall_at_20:max",))
    assert (found.refit, found.test_epochs) == (True, (3, 6))


@pytest.mark.parametrize("asked", ["recall_at_20:", "recall_at_20:up", "ndcg_at_20:mx"])
def test_unknown_direction_is_refused(asked: str) -> None:
    metric = asked.partition(":")[0]
    with pytest.raises(UserError, match=f"The direction of the objective {metric} is not valid: got '{asked}'; "):
        objectives.chosen(NDCG, (asked,))


def test_undeclared_metric_without_a_direction_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        objectives.chosen(NDCG, ("ndcg",), {"gini_at_20": "min"})
    assert str(caught.value) == (
        "The objective ndcg is not declared by the workload, whose default is ndcg_at_20. "
        "For another metric of validation give the direction: ndcg:max or ndcg:min; "
        "the name is checked at the first evaluation."
    )
    with pytest.raises(UserError, match=r"whose defaults are ndcg_at_20, loss. For another metric"):
        objectives.chosen((NDCG, LOSS), ("zzz",))


@pytest.mark.parametrize("text", ["validation/ndcg_at_20,validation/loss:min", "ndcg_at_20, loss:min"])
def test_validation_prefix_and_spaces_are_removed_from_objectives(text: str) -> None:
    """The prefix ``validation/`` is optional and does not change the plan."""
    assert Plan(objective=text).objective == ("ndcg_at_20", "loss:min")  # type: ignore[arg-type]
    assert [one.metric for one in objectives.chosen((NDCG, LOSS), tuple(text.replace(" ", "").split(",")))] == [
        "ndcg_at_20",
        "loss",
    ]


@pytest.mark.parametrize("asked", ["", ":max"])
def test_objective_without_a_name_is_refused(asked: str) -> None:
    with pytest.raises(UserError, match="An objective has no name"):
        objectives.chosen(LOSS, ("loss", asked))


def test_objective_named_twice_is_refused() -> None:
    with pytest.raises(UserError, match="An objective is named twice: got loss:min, loss"):
        objectives.chosen(LOSS, ("loss:min", "loss"))


def test_value_of_an_objective_is_read_from_validation() -> None:
    metrics = {"validation/loss": 0.5, "train/loss": 9.0, "test/loss": 7.0}
    assert objectives.value(LOSS, metrics) == 0.5


def test_objective_that_validation_does_not_report_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        objectives.value(Objective("ndgc_at_20", "max"), {"validation/ndcg_at_20": 0.5, "train/loss": 9.0})
    message = str(caught.value)
    assert "got 'ndgc_at_20'; allowed: ndcg_at_20." in message
    assert "Did you mean 'ndcg_at_20'?" in message


def test_unreported_objective_without_a_near_one_proposes_no_refused_direction() -> None:
    with pytest.raises(UserError, match="Name another, with its direction: objective=METRIC:max or "):
        objectives.value(Objective("xyz", "max"), {"validation/ndcg_at_20": 0.5})
