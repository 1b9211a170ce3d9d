"""Names and values that MLflow rejects: they are changed or reported, and other values are not lost."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engine.loop import Row
from orchestrator.tracking.names import MAX_NAME, MAX_PARAM, MAX_TAG, Names, fitting
from orchestrator.tracking.tracker import Tracker
from tests.support.tracked import OWNER, expected, metrics, query, row, rows, statuses, tags
from tests.support.waiting import HANG_SECONDS

AWKWARD = [
    "recall@10", "p(x)", "100%", "a//b", "/a", "../a", "..a", "a/", ".", "", "a\n", "a\tb", "x" * 300, "é/ü", "ν@1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "nan at epoch 7"), (math.inf, "inf at epoch 7"), (-math.inf, "-inf at epoch 7")]
)
def test_a_value_that_is_not_finite_is_a_tag(
    value: float, said: str, open_tracker: Callable[..., Tracker], database: Path
) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, rows(1, 6))
    tracker.log(OWNER, [row(7, loss=value, norm=1.0), row(8, loss=value, norm=2.0)])
    assert tracker.flush()
    tracker.log(OWNER, [row(9, loss=value, norm=3.0)])
    tracker.log(OWNER, rows(10, 11))
    tracker.end(OWNER, "FINISHED")
    assert tracker.close() is None
    assert statuses(database) == {OWNER: "FINISHED"}
    finite = [row(7, norm=1.0), row(8, norm=2.0), row(9, norm=3.0)]
    assert metrics(database) == expected(rows(1, 6), finite, rows(10, 11))
    assert tags(database)["nonfinite.train/loss"] == said


def test_unsupported_metric_name_is_replaced_and_reported_once(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={})
    tracker.log(OWNER, [Row(epoch, 1.7e9, {"test/recall@20": epoch / 8}) for epoch in (1, 2)])
    assert tracker.flush()
    tracker.log(OWNER, [Row(3, 1.7e9, {"test/recall@20": 0.5})])
    told = tracker.close()
    assert told == "MLflow does not accept the metric name 'test/recall@20'; it is logged as 'test/recall_at_20'"
    assert [entry[:3] for entry in metrics(database)] == [
        ("test/recall_at_20", 1, 0.125), ("test/recall_at_20", 2, 0.25), ("test/recall_at_20", 3, 0.5),
    ]  # fmt: skip


def test_names_that_would_collide_stay_distinct(open_tracker: Callable[..., Tracker], database: Path) -> None:
    values = {"recall@10": 0.1, "recall_at_10": 0.2, "a(b": 0.3, "a)b": 0.4}
    for first, resuming in ((1, False), (2, True)):
        tracker = open_tracker(resuming=resuming)
        tracker.start(OWNER, "run", params=values)
        tracker.log(OWNER, [Row(first, 1.7e9, values)])
        assert tracker.close()
    found = {(step, value): name for name, step, value, _ in metrics(database)}
    assert {value for _, value in found} == set(values.values())
    assert found[1, 0.2] == "recall_at_10", "an accepted name must not change"
    assert found[1, 0.1].startswith("recall_at_10-")
    assert all(found[1, value] == found[2, value] for value in values.values()), "a resume must use the same names"
    assert dict(query(database, "select key, value from params"))[found[1, 0.1]] == "0.1"


def test_values_of_all_unsupported_names_are_logged(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    values = {name: float(number) for number, name in enumerate(AWKWARD)}
    tracker.start(OWNER, "run", params=values, tags={name: str(value) for name, value in values.items()})
    tracker.log(OWNER, [Row(1, 1.7e9, values)])
    tracker.tag(OWNER, {name: f"later {value}" for name, value in values.items()})
    told = tracker.close()
    assert told is not None
    assert "refused" not in told
    assert sorted(value for _, _, value, _ in metrics(database)) == sorted(values.values())
    assert {float(value) for (value,) in query(database, "select value from params")} == set(values.values())
    assert sum(value.startswith("later ") for value in tags(database).values()) == len(AWKWARD)


def test_names_that_fit_are_left_alone() -> None:
    plain = ["train/loss", "a.b-c d:e", "ndcg_at_20", "x" * MAX_NAME, "é", "system/gpu_0_utilization_percentage"]
    assert [fitting(name) for name in plain] == plain
    assert len(fitting("x" * 300)) == MAX_NAME
    assert fitting("x" * 300) != fitting("x" * 301)
    names = Names()
    assert names.give(plain) == {name: name for name in plain}
    assert names.changed() == {}


def test_long_values_are_cut_visibly(open_tracker: Callable[..., Tracker], database: Path) -> None:
    tracker = open_tracker()
    fits = "y" * MAX_PARAM
    tracker.start(OWNER, "run", params={"long": "x" * 20_000, "fits": fits, "next": 1}, tags={"born": "b" * 20_000})
    tracker.tag(OWNER, {"later": "t" * 9000})
    assert tracker.close() is None
    params = dict(query(database, "select key, value from params"))
    assert (len(params["long"]), params["fits"], params["next"]) == (MAX_PARAM, fits, "1")
    assert params["long"].endswith("x... (whole value in spec.json)")
    found = tags(database)
    assert (len(found["born"]), len(found["later"])) == (MAX_TAG, MAX_TAG)
    assert found["later"].endswith("t... (cut, 9000 characters)")


def test_text_that_is_not_utf_8_is_escaped(open_tracker: Callable[..., Tracker], database: Path) -> None:
    """MLflow would answer as in an outage, and no later operation would be sent."""
    odd = "a\udcff"
    tracker = open_tracker()
    tracker.start(OWNER, odd, params={"note": odd, odd: 1}, tags={"born": odd})
    tracker.input(OWNER, {"name": odd, "digest": "d", "source": odd})
    tracker.log(OWNER, [Row(1, 1.7e9, {odd: 0.5})])
    tracker.tag(OWNER, {"later": odd})
    assert tracker.flush(timeout=HANG_SECONDS)
    assert "refused" not in str(tracker.close())
    assert query(database, "select name from runs") == [("a\\udcff",)]
    assert dict(query(database, "select key, value from params")) == {"note": "a\\udcff", "a_": "1"}
    assert (tags(database)["born"], tags(database)["later"]) == ("a\\udcff", "a\\udcff")
    assert metrics(database) == [("a_", 1, 0.5, 1_700_000_000_000)]


def test_more_parameters_than_one_request_allows_are_all_logged(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    tracker = open_tracker()
    many = {f"p{number:03d}": "ü" * 5900 for number in range(250)}
    tracker.start(OWNER, "run", params=many, tags={f"t{number}": "v" for number in range(250)})
    tracker.tag(OWNER, {f"u{number}": "v" for number in range(250)})
    assert tracker.close() is None
    assert query(database, "select count(*), min(length(value)) from params") == [(250, 5900)]
    assert len(tags(database)) >= 502


@pytest.mark.parametrize("value", [None, "high", [1], 10**400])
def test_only_the_batch_with_a_value_that_is_not_a_number_is_refused(
    value: Any, open_tracker: Callable[..., Tracker], database: Path
) -> None:
    tracker = open_tracker()
    tracker.start(OWNER, "run", params={"odd": object()})
    tracker.log(OWNER, rows(1, 2))
    assert tracker.flush()
    tracker.log(OWNER, [Row(3, 1.7e9, {"train/loss": value})])
    assert tracker.flush(timeout=HANG_SECONDS), "the value must not block the queue"
    tracker.log(OWNER, rows(4, 5))
    tracker.end(OWNER, "FINISHED")
    told = tracker.close()
    assert told is not None
    assert told.startswith("MLflow refused some values: ")
    assert "\n" not in told
    assert statuses(database) == {OWNER: "FINISHED"}
    assert metrics(database) == expected(rows(1, 2), rows(4, 5))


def test_changed_parameter_keeps_its_first_value_and_is_reported(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    for resuming, lr in ((False, 0.1), (True, 0.2)):
        tracker = open_tracker(resuming=resuming)
        tracker.start(OWNER, "run", params={"lr": lr, **({"new": 1} if resuming else {})})
        told = tracker.close()
    assert told is not None
    assert "lr" in told
    assert dict(query(database, "select key, value from params")) == {"lr": "0.1", "new": "1"}


def test_dataset_is_logged_once_as_an_mlflow_dataset_input(
    open_tracker: Callable[..., Tracker], database: Path
) -> None:
    profile = {"users": 943, "items": 1682}
    for resuming in (False, True):
        tracker = open_tracker(resuming=resuming)
        tracker.start(OWNER, "run", params={})
        tracker.input(
            OWNER, {"name": "ml-100k", "digest": "d" * 36, "source": "ml-100k", "profile": json.dumps(profile)}
        )
        assert tracker.close() is None
    from mlflow.tracking import MlflowClient

    (run,) = MlflowClient(f"sqlite:///{database}").search_runs(["1"])
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest, given.dataset.source) == ("ml-100k", "d" * 36, "ml-100k")
    assert json.loads(given.dataset.profile) == profile
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
