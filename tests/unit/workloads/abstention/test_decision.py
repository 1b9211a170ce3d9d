"""The rule by which a served model abstains: scores, choice of the success, and refused promises."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from workloads.abstention.calibration import Side, exported, first_relevant, fit_temperature, top_k
from workloads.abstention.decision import KEY, rule
from workloads.abstention.scores import by, margin, mass, padded

RANDOM = np.random.default_rng(0)


def side(n: int, best: float = 1.0) -> Side:
    """Scores s uniform on [0, 1]; the first relevant place is 1 with probability ``best`` * s, else 3 with sqrt(s)."""
    scores = RANDOM.random(n)
    first = np.where(RANDOM.random(n) < best * scores, 1, np.where(RANDOM.random(n) < np.sqrt(scores), 3, 0))
    successes = top_k(first, (1, 3))
    return Side(
        {"c": {one.name: scores for one in successes}, "margin": {one.name: -scores for one in successes}}, successes
    )


def model(n: int = 400, best: float = 1.0, trusted: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    table = exported(
        side(n, best), side(200, best), share=0.2, default=("c", "top_1"), temperatures={"top_1": 2.0, "top_3": 3.0},
        trusted=trusted,
    )  # fmt: skip
    return {name: tensor.numpy() for name, tensor in table.weights.items()}, json.loads(json.dumps(dict(table.config)))


MODEL = model()


@pytest.mark.parametrize("trusted", [True, False])
def test_scores_above_the_threshold_are_answered_and_others_have_a_reason(trusted: bool) -> None:
    weights, config = model(trusted=trusted)
    assert ("abstention.validation_losses" in weights) is trusted
    one = rule(weights, config, risk=0.3)
    assert one is not None
    assert 0.1 < one.answering.threshold < 0.9
    answered, reasons = one.decide(np.array([one.answering.threshold, 0.01]))
    assert answered.tolist() == [True, False]
    assert reasons[0] == ""
    assert reasons[1].startswith("c of 0.01 is below")
    assert "at most 0.3 fail (top_1), with a probability of at least 0.9 over the draw of 400" in one.sentence()
    reported = one.attrs(np.array([0.5, 0.1]), answered)[KEY]
    assert json.loads(json.dumps(reported)) == reported
    assert len(reported["calibration"]) == 400


def test_without_risk_there_is_no_rule() -> None:
    assert rule(*MODEL) is None
    assert rule({}, {}, risk=0.0, delta=0.2) is None


def test_first_success_with_enough_coverage_is_chosen() -> None:
    narrow, wide = (rule(*MODEL, risk=0.3, success=name, delta=0.05) for name in ("top_1", "top_3"))
    assert narrow is not None
    assert wide is not None
    assert narrow.answering.coverage < wide.answering.coverage
    both: dict[str, Any] = {"risk": 0.3, "success": "top_1,top_3", "delta": 0.1}  # half of delta for each success
    any_of = rule(*MODEL, **both)
    enough = rule(*MODEL, **both, least_coverage=wide.answering.coverage)
    too_much = rule(*MODEL, **both, least_coverage=1.0)
    assert [one and one.success for one in (any_of, enough, too_much)] == ["top_1", "top_3", "top_3"]
    assert any_of is not None
    assert any_of.answering == narrow.answering


def test_sentence_of_the_crc_promise_refers_to_all_queries() -> None:
    one = rule(*MODEL, risk=0.1, promise="crc")
    assert one is not None
    assert one.sentence().startswith("of all queries, at most 0.1 are answered without top_1 on average")


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (({}, {}), {"risk": 0.1}, "trained without them: train it with abstention_part=0.2"),
        (MODEL, {"risk": 1.5}, "risk=1.5 is not between 0 and 1"),
        (MODEL, {"risk": 0.1, "delta": 0.0}, "delta=0 is not between 0 and 1"),
        (MODEL, {"risk": 0.1, "promise": "mean"}, "promise=mean is none of ltt, crc"),
        (MODEL, {"risk": 0.1, "abstain_by": "bm25"}, "abstain_by=bm25 is none of c, margin"),
        (MODEL, {"risk": 0.1, "success": "top_2"}, "success=top_2 is none of top_1, top_3"),
        (MODEL, {"risk": 0.1, "success": "top_1,top_1"}, "names one twice"),
        (MODEL, {"risk": 0.1, "success": "top_1,top_3", "promise": "crc"}, "Name one"),
        (MODEL, {"risk": 0.1, "least_coverage": 2.0}, "least_coverage=2 is not from 0 to 1"),
        (MODEL, {"risk": 0.1, "abstain_by": "margin"}, "no number of queries would do"),
        (model(20), {"risk": 0.05}, "with the 20 queries of the abstention part by the score c: at least 45 answered"),
        (model(8), {"risk": 0.1, "promise": "crc"}, "at least 9 would be needed"),
    ],
)  # fmt: skip
def test_promise_that_cannot_be_given_raises_value_error(model: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rule(*model, **asked)


def test_too_few_queries_are_refused_with_an_estimate_of_how_many_it_takes() -> None:
    with pytest.raises(ValueError, match=r"about (\d+) would be needed, by how often these succeed") as refused:
        rule(*model(60), risk=0.2, delta=0.001)
    assert int(str(refused.value).split("about ")[1].split()[0]) > 60


def test_margin_and_softmax_scores_of_padded_lists_match_reference() -> None:
    lists = np.array([1, 0, 1, 1, 3])
    rows = padded(np.array([2.0, 5.0, 1.0, 4.0, 3.0]), lists, 4)
    assert rows.tolist() == [
        [5.0, -np.inf, -np.inf], [2.0, 1.0, 4.0], [-np.inf] * 3, [3.0, -np.inf, -np.inf]
    ]  # fmt: skip
    assert margin(rows).tolist() == [0.0, 2.0, 0.0, 0.0]
    expected = np.exp([4.0, 2.0]).sum() / np.exp([4.0, 2.0, 1.0]).sum()
    np.testing.assert_allclose(by("softmax", rows, 2, 1.0), [1, expected, 0, 1])
    np.testing.assert_allclose(mass(10 * rows, 2, 10.0), mass(rows, 2, 1.0))
    relevant = np.array([[False, False, False], [True, True, False], [True] * 3, [True, True, True]])
    assert first_relevant(rows, relevant).tolist() == [0, 2, 0, 1]


def test_temperature_recovers_that_of_the_draws() -> None:
    random = np.random.default_rng(2)
    scores = random.normal(0, 2, (4000, 5))
    p = np.exp(scores / 3)
    p /= p.sum(1, keepdims=True)
    answer = (p.cumsum(1) > random.random((4000, 1))).argmax(1)
    losses = (answer != scores.argmax(1)).astype(float)
    assert fit_temperature(scores, losses, 1) == pytest.approx(3, rel=0.2)
