"""Promotion and rollback of aliases on a real MLflow store, without loading models."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND

from orchestrator.cli import app
from orchestrator.errors import DONE, REFUSED, UNAVAILABLE, USAGE, UserError
from orchestrator.promotion import alias_lock, aliases, isolated_check
from orchestrator.promotion.alias_lock import Refusal
from orchestrator.promotion.aliases import Request, history, promote, rollback
from orchestrator.promotion.audit_log import EXPERIMENT, AuditLog, Event
from orchestrator.promotion.evidence import gather, incomparable
from orchestrator.promotion.isolated_check import Measured, Tried
from orchestrator.registry import models as registry
from orchestrator.storage.settings import Settings, resolve
from tests.support.waiting import HANG_SECONDS, until

GOOD = Tried(measured=Measured(1.0, 0.5, 2.0))


@pytest.fixture
def settings(database: Path) -> Settings:
    return resolve()


@pytest.fixture
def client(settings: Settings) -> Any:
    return registry.client(settings)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tried]:
    """The result of each version in the clean process: ``GOOD``, unless this dict has another one."""
    found: dict[str, Tried] = {}
    monkeypatch.setattr(isolated_check, "try_out", lambda client, model, version: found.get(str(version.version), GOOD))
    monkeypatch.setattr(isolated_check, "signature", lambda client, model, version: None)
    return found


@pytest.fixture
def rec(client: Any, tmp_path: Path) -> Callable[..., str]:
    """A function that registers a version of ``rec``, with a run's record and ``gain`` on each of 50 units."""
    client.create_registered_model("rec")
    experiment = client.create_experiment("recommender", artifact_location=str(tmp_path / "artifacts"))

    def register(gain: float = 0.0, **tags: str) -> str:
        run = client.create_run(experiment, tags={"orchestrator.data_fingerprint": "f", **tags}).info.run_id
        units = pd.DataFrame({"id": range(50), "ndcg_at_20": [gain + i / 1000 for i in range(50)]})
        units.to_parquet(tmp_path / "validation_units.parquet")
        client.log_artifact(run, str(tmp_path / "validation_units.parquet"))
        spec = {"workload": "recommender", "params": {"dataset": "a", "lr": gain}, "plan": {}}
        client.log_dict(run, spec, "spec.json")
        metrics = {"validation/ndcg_at_20": float(units["ndcg_at_20"].mean()), "test/ndcg_at_20": 1.0}
        client.log_dict(run, {"metrics": metrics}, "outcome.json")
        return str(client.create_model_version("rec", str(tmp_path / "model"), run).version)

    return register


def gated(settings: Settings, text: str) -> None:
    (settings.home / "gates.yaml").write_text(f"rec: {{champion: {{{text}}}}}")


def to(version: str | None = None, **more: Any) -> Request:
    return Request("rec", "champion", version, **more)


def held(client: Any) -> str | None:
    return registry.alias_version(client, "rec", "champion")


# Promotion


def test_promote_takes_the_newest_version_unless_one_is_named(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    for _ in range(11):
        rec()
    assert promote(settings, to()).version == held(client) == "11"
    event = promote(settings, to("3", reason="the ninth was worse"))
    assert (event.outcome, event.before, event.version, held(client)) == ("done", "11", "3", "3")


def test_promoting_the_current_version_again_records_no_event(settings: Settings, rec: Callable[..., str]) -> None:
    rec()
    promote(settings, to())
    assert (promote(settings, to()).outcome, len(history(settings, "rec"))) == ("done", 1)


def test_promotion_event_is_stored_in_run_tags_file_and_version_tags(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    rec()
    promote(settings, to())
    rec(gain=0.1)
    gated(settings, "better: true")
    event = promote(settings, to(reason="more epochs"))

    tags = client.get_model_version("rec", "2").tags
    assert tags["orchestrator.promotion"] == f"promote champion done, {event.at[:10]}, ada"
    assert tags["orchestrator.promotion.event"] == event.id
    gate = event.gates[-1]
    assert (gate["gate"], gate["verdict"]) == ("better: ndcg_at_20", "pass")
    assert (gate["before"], gate["after"]) == (pytest.approx(0.0245), pytest.approx(0.1245))  # of validation

    run = client.get_run(event.id)
    shown = {
        name: run.data.tags[f"orchestrator.{name}"]
        for name in ("version", "alias", "outcome", "before", "by", "reason")
    }
    assert shown == {
        "version": "2", "alias": "champion", "outcome": "done", "before": "1", "by": "ada", "reason": "more epochs",
    }  # fmt: skip
    assert run.info.status == "FINISHED"
    text = Path(client.download_artifacts(event.id, "event.json")).read_text()
    assert Event.from_json(json.loads(text)) == event == history(settings, "rec")[-1]


def test_history_is_kept_after_the_model_is_deleted(settings: Settings, client: Any, rec: Callable[..., str]) -> None:
    rec()
    promote(settings, to())
    client.delete_registered_model("rec")
    assert [event.version for event in history(settings, "rec")] == ["1"]


def test_history_contains_only_events_of_the_given_model(
    settings: Settings, client: Any, rec: Callable[..., str], tmp_path: Path
) -> None:
    rec()
    client.create_registered_model("other")
    client.create_model_version("other", str(tmp_path / "theirs"))
    promote(settings, Request("other", "champion"))
    assert history(settings, "rec") == []
    assert [event.model for event in history(settings, "other")] == ["other"]


# Refusals


def test_refused_promotion_keeps_the_alias_and_records_an_event(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    rec(gain=0.1)
    promote(settings, to())
    rec()
    gated(settings, "better: ndcg_at_20, size_mb: 0.5")
    with pytest.raises(Refusal, match=r"refused by better: ndcg_at_20, size \(MB\)\. Nothing was changed") as caught:
        promote(settings, to())
    assert (caught.value.code, held(client)) == (REFUSED, "1")
    event = history(settings, "rec")[-1]
    assert event == caught.value.event
    assert (event.outcome, event.before, event.version) == ("refused", "1", "2")
    assert client.get_run(event.id).info.status == "FAILED"
    assert client.get_model_version("rec", "2").tags["orchestrator.promotion"].startswith("promote champion refused, ")


def test_version_that_does_not_load_is_refused_even_with_force(
    settings: Settings, client: Any, rec: Callable[..., str], room: dict[str, Tried]
) -> None:
    rec()
    room["1"] = Tried("its files are gone (No such artifact)")
    for request in (to(), to(force=True, reason="now")):
        with pytest.raises(Refusal, match=r"loads and predicts: its files are gone \(No such artifact\)") as caught:
            promote(settings, request)
        assert (caught.value.code, held(client)) == (REFUSED, None)


def test_force_skips_the_gates_and_the_event_records_it(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    rec(gain=0.1)
    promote(settings, to())
    rec()
    gated(settings, "better: true, guard: {ndcg_at_20: 0}, size_mb: 0.1")
    event = promote(settings, to(force=True, reason="the first one leaks"))
    assert (held(client), event.forced, event.reason) == ("2", True, "the first one leaks")
    verdicts = {gate["gate"]: gate["verdict"] for gate in event.gates}
    assert verdicts.pop("loads and predicts") == "pass"
    assert set(verdicts.values()) == {"skipped"}
    assert set(verdicts) == {"signature", "better", "not worse: ndcg_at_20", "size"}


def test_requested_confidence_overrides_the_gates_file(settings: Settings, rec: Callable[..., str]) -> None:
    rec()
    promote(settings, to())
    rec(gain=0.01)
    gated(settings, "better: true, confidence: 0.9")
    event = promote(settings, to(confidence=0.99))
    assert "at 0.99 over 50 units" in event.gates[-1]["note"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("rec", "latest"), "The alias latest is reserved"),
        (Request("rec", "Latest"), "reserved"),
        (Request("rec", "V12"), "The alias V12 is reserved"),
        (Request("rec", "the best"), "The alias is not valid: got 'the best'"),
        (Request("rec", ""), "The alias is not valid"),
        (Request("recc", "champion"), "Unknown registered model: got 'recc'; allowed: rec. Did you mean 'rec'"),
        (Request("rec@champion", "staging"), "Write the name, rec; promote takes a version with --version"),
        (Request("rec/99", "staging"), "Write the name, rec; promote takes a version with --version"),
        (Request("re'c", "champion"), "Unknown registered model"),
        (Request("images", "champion"), "Unknown registered model: got 'images'; allowed: rec. Register one"),
        (to("7"), "Unknown version of rec: got '7'; allowed: 1"),
        (to("latest"), "Unknown version of rec: got 'latest'"),
        (to(force=True), "--force needs a reason"),
        (to(force=True, reason=" "), "--force needs a reason"),
        (to(reason="x" * 501), "The reason is too long: got 501 characters; allowed: 500"),
        (to(confidence=95), "The confidence is not valid: got 95; allowed: above 0.5 and below 1"),
    ],
)
def test_invalid_request_raises_user_error_before_any_change(
    request_: Request, message: str, settings: Settings, client: Any, rec: Callable[..., str],
    room: dict[str, Tried], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rec()
    monkeypatch.setattr(isolated_check, "try_out", lambda *words: pytest.fail("nothing is tried out yet"))
    with pytest.raises(UserError, match=message) as caught:
        promote(settings, request_)
    assert (caught.value.code, held(client)) == (USAGE, None)
    assert client.get_experiment_by_name(EXPERIMENT) is None


def test_gate_on_a_metric_missing_in_the_run_raises_user_error(settings: Settings, rec: Callable[..., str]) -> None:
    rec()
    gated(settings, "guard: {ndgc_at_20: 0.1}")
    with pytest.raises(UserError, match=r"got 'ndgc_at_20'; allowed: ndcg_at_20\. Did you mean 'ndcg_at_20'") as caught:
        promote(settings, to())
    assert caught.value.code == USAGE


def test_promoting_a_model_without_versions_raises_user_error(
    settings: Settings, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "empty"):
        client.create_registered_model(name)
    search = MlflowClient.search_registered_models  # by default a page has 100 models
    monkeypatch.setattr(MlflowClient, "search_registered_models", partialmethod(search, max_results=1))
    with pytest.raises(UserError, match="empty has no version"):
        promote(settings, Request("empty", "champion"))


def test_mlflow_failure_during_promotion_raises_user_error(
    settings: Settings, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    def away(*words: Any) -> None:
        raise MlflowException("API request failed: connection refused\nmore")

    rec()
    monkeypatch.setattr(AuditLog, "open", away)
    with pytest.raises(
        UserError, match=r"The request to MLflow failed: got API request failed: connection refused\. "
    ) as caught:
        promote(settings, to())
    assert caught.value.code == UNAVAILABLE


# Concurrent promotions


def test_promotion_is_refused_if_the_alias_moves_while_gates_are_judged(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rec()
    promote(settings, to("1"))

    def meanwhile(*words: Any) -> Tried:
        client.set_registered_model_alias("rec", "champion", "3")
        return GOOD

    monkeypatch.setattr(isolated_check, "try_out", meanwhile)
    with pytest.raises(Refusal, match=r"Someone else moved rec@champion meanwhile: it is version 3") as caught:
        promote(settings, to("2"))
    assert (caught.value.code, held(client), history(settings, "rec")[-1].outcome) == (REFUSED, "3", "refused")


def test_promotion_is_refused_if_another_writer_moves_the_alias_right_after(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        rec()
    real = type(client).set_registered_model_alias

    def overtaken(self: Any, model: str, alias: str, version: str) -> None:
        real(self, model, alias, version)
        real(self, model, alias, "1")

    monkeypatch.setattr(type(client), "set_registered_model_alias", overtaken)
    with pytest.raises(Refusal, match="it is version 1"):
        promote(settings, to("2"))
    assert held(client) == "1"


def test_of_two_concurrent_promotions_the_second_is_refused(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second promotion begins after the first has last read the alias and before the first moves it."""
    for _ in range(3):
        rec()
    promote(settings, to("1"))
    others = ThreadPoolExecutor(1)
    second: list[Future[Event]] = []
    waiting, move = threading.Event(), type(client).set_registered_model_alias

    def sleep(seconds: float) -> None:
        waiting.set()
        time.sleep(seconds)

    monkeypatch.setattr(alias_lock, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    def slowly(self: Any, model: str, alias: str, version: str) -> None:
        if version == "2":
            second.append(others.submit(promote, settings, to("3")))
            until(lambda: second[0].done() or waiting.is_set())
        move(self, model, alias, version)

    monkeypatch.setattr(type(client), "set_registered_model_alias", slowly)
    with others:
        assert promote(settings, to("2")).outcome == "done"
    with pytest.raises(Refusal, match=r"Someone else (is moving|moved) rec@champion") as caught:
        second[0].result()
    assert (caught.value.code, held(client)) == (REFUSED, "2")
    assert [(e.version, e.outcome) for e in history(settings, "rec")[1:]] == [("2", "done"), ("3", "refused")]
    assert rollback(settings, "rec", "champion").version == "1"


@pytest.mark.parametrize("earlier", [True, False])
def test_of_two_open_events_the_later_is_refused_and_the_earlier_waits(
    earlier: bool, settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        rec()
    promote(settings, to("1"))
    audit_log = AuditLog(settings)
    monkeypatch.setattr(alias_lock, "LIVE_SECONDS", 4 * HANG_SECONDS)
    moment = datetime.now(UTC) + timedelta(seconds=-HANG_SECONDS if earlier else HANG_SECONDS)
    rival = audit_log.open(Event("rec", "champion", "promote", "1", "1", "ada", moment.isoformat()))
    waited: list[float] = []

    def end(seconds: float) -> None:
        waited.append(seconds)
        audit_log.close(rival, "refused")

    monkeypatch.setattr(alias_lock, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
    if earlier:
        with pytest.raises(Refusal, match=r"is moving rec@champion at this moment: got promote to version 1 by ada"):
            promote(settings, to("2"))
        assert (waited, held(client)) == ([], "1")
    else:
        assert (promote(settings, to("2")).outcome, held(client), len(waited)) == ("done", "2", 1)


def test_open_event_of_a_dead_writer_does_not_block_a_promotion(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    for _ in range(2):
        rec()
    moment = (datetime.now(UTC) - timedelta(seconds=alias_lock.LIVE_SECONDS)).isoformat()
    AuditLog(settings).open(Event("rec", "champion", "promote", "1", None, "ada", moment))
    assert (promote(settings, to("2")).outcome, held(client)) == ("done", "2")


def test_late_move_of_a_writer_taken_for_dead_is_undone_and_refused(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rec()
    promote(settings, to("1"))
    move, slept = type(client).set_registered_model_alias, []

    def sleeps(self: Any, model: str, alias: str, version: str) -> None:
        if version == "2":
            slept.append(version)
            with monkeypatch.context() as patch:
                patch.setattr(alias_lock, "LIVE_SECONDS", 0.0)  # as if half an hour passed
                promote(settings, to("3"))
        move(self, model, alias, version)

    monkeypatch.setattr(type(client), "set_registered_model_alias", sleeps)
    with pytest.raises(Refusal, match="Someone else moved rec@champion meanwhile: it is version 3"):
        promote(settings, to("2"))
    assert (slept, held(client)) == (["2"], "3")
    outcomes = {event.version: event.outcome for event in history(settings, "rec")}
    assert outcomes == {"1": "done", "2": "refused", "3": "done"}


@pytest.mark.parametrize("hours", [-1, 1], ids=["slow", "fast"])
def test_writer_with_a_wrong_clock_is_refused_after_another_promotion(
    hours: int, settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's event is an hour off by this machine's clock, in the past or future, when it is about to write."""
    for _ in range(3):
        rec()
    promote(settings, to("1"))
    settle, others = AuditLog.settle, []

    def late(self: AuditLog, event: Event, fate: str) -> bool:
        if event.version == "2" and fate == alias_lock.MOVING:
            others.append(promote(settings, to("3")))
        return settle(self, event, fate)

    monkeypatch.setattr(AuditLog, "settle", late)
    moment = datetime.now(UTC) + timedelta(hours=hours)
    audit_log = AuditLog(settings)
    slow = audit_log.open(Event("rec", "champion", "promote", "2", "1", "ada", moment.isoformat()))
    with pytest.raises(Refusal, match="Someone else moved rec@champion meanwhile: it is version 3"):
        alias_lock.move(audit_log, slow)
    assert ([event.outcome for event in others], held(client)) == (["done"], "3")


def test_promotion_waits_a_bounded_time_for_a_writer_that_died_while_moving(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        rec()
    audit_log = AuditLog(settings)
    moment = (datetime.now(UTC) - timedelta(seconds=2 * alias_lock.LIVE_SECONDS)).isoformat()
    dead = audit_log.open(Event("rec", "champion", "promote", "1", None, "ada", moment))
    assert audit_log.settle(dead, alias_lock.MOVING)
    assert not audit_log.settle(dead, alias_lock.DEAD)
    clock = iter(range(0, 1000, 10))
    stub = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(clock))
    monkeypatch.setattr(alias_lock, "time", stub)
    assert (promote(settings, to("2")).outcome, held(client)) == ("done", "2")
    assert 1 < next(clock) / 10 < 6


def test_promotion_is_done_although_its_event_file_cannot_be_stored(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rec()
    log_dict, calls = type(client).log_dict, []

    def second_fails(self: Any, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 1:
            raise MlflowException("503")
        log_dict(self, *arguments)

    monkeypatch.setattr(type(client), "log_dict", second_fails)
    assert promote(settings, to()).outcome == "done"
    assert [event.outcome for event in history(settings, "rec")] == ["done"]
    (event,) = history(settings, "rec")
    client.set_tag(event.id, "orchestrator.event", "{")  # as if cut by MLflow; the event's file has "started"
    assert [event.outcome for event in history(settings, "rec")] == ["done"]


def test_deleted_audit_log_experiment_raises_user_error(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    rec()
    promote(settings, to())
    number = client.get_experiment_by_name(EXPERIMENT).experiment_id
    client.delete_experiment(number)
    for call in (lambda: history(settings, "rec"), lambda: rollback(settings, "rec", "champion")):
        with pytest.raises(UserError, match=f"was deleted. .*restore --experiment-id {number}") as caught:
            call()
        assert caught.value.code == UNAVAILABLE
    client.restore_experiment(number)
    assert len(history(settings, "rec")) == 1


# Rollback


@pytest.mark.slow
def test_repeated_rollbacks_end_at_the_first_version_and_then_raise(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    for version in "123":
        rec()
        promote(settings, to(version))
    event = rollback(settings, "rec", "champion", "clicks fell")
    assert (event.action, event.before, event.version, event.reason) == ("rollback", "3", "2", "clicks fell")
    promote(settings, to("3"))
    assert [rollback(settings, "rec", "champion").version for _ in range(2)] == ["2", "1"]
    with pytest.raises(UserError, match="rec@champion has no earlier version: got version 1, its first") as caught:
        rollback(settings, "rec", "champion")
    assert (caught.value.code, held(client)) == (REFUSED, "1")
    assert [(e.action, e.version) for e in history(settings, "rec")][3:] == [
        ("rollback", "2"), ("promote", "3"), ("rollback", "2"), ("rollback", "1"),
    ]  # fmt: skip


def test_events_are_in_order_whatever_the_clocks_of_their_writers(
    settings: Settings, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in "123":
        rec()
        with monkeypatch.context() as patch:
            if version == "2":
                ahead = datetime.now(UTC) + timedelta(seconds=120)
                patch.setattr(aliases, "now", ahead.isoformat)
                mlflows = Mock(return_value=int(ahead.timestamp() * 1000))
                patch.setattr("mlflow.tracking._tracking_service.client.get_current_time_millis", mlflows)
            promote(settings, to(version))
    assert [event.version for event in history(settings, "rec")] == ["1", "2", "3"]
    assert [rollback(settings, "rec", "champion").version for _ in range(2)] == ["2", "1"]


def test_rollback_is_correct_in_a_log_misordered_by_different_clocks(
    settings: Settings, rec: Callable[..., str], database: Path
) -> None:
    for version in "123":
        rec()
        event = promote(settings, to(version))
        if version == "2":
            ahead = event.id
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE runs SET start_time = start_time + 120000 WHERE run_uuid = ?", (ahead,))
        connection.commit()
    assert [event.version for event in history(settings, "rec")] == ["1", "3", "2"]
    assert [rollback(settings, "rec", "champion").version for _ in range(2)] == ["2", "1"]


def test_rollback_ignores_refused_promotions(settings: Settings, client: Any, rec: Callable[..., str]) -> None:
    for version in "12":
        rec()
        promote(settings, to(version))
    gated(settings, "size_mb: 0.1")
    rec()
    with pytest.raises(Refusal):
        promote(settings, to("3"))
    assert rollback(settings, "rec", "champion").version == held(client) == "1"


def test_rollback_of_an_unknown_alias_raises_user_error(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    client.set_registered_model_alias("rec", "champion", rec())
    with pytest.raises(UserError, match="Unknown alias of rec: got 'champoin'; allowed: champion") as caught:
        rollback(settings, "rec", "champoin")
    assert caught.value.code == USAGE


def test_rollback_of_an_alias_that_was_never_promoted_is_refused(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    client.set_registered_model_alias("rec", "champion", rec())
    with pytest.raises(UserError, match="no earlier version: got no promotion") as caught:
        rollback(settings, "rec", "champion")
    assert caught.value.code == REFUSED


def test_rollback_of_an_alias_moved_by_other_means_is_refused(
    settings: Settings, client: Any, rec: Callable[..., str]
) -> None:
    for version in "123":
        rec()
        promote(settings, to(version))
    client.set_registered_model_alias("rec", "champion", "1")
    with pytest.raises(UserError, match=r"moved by other means .*: got version 1; promoted was 3") as caught:
        rollback(settings, "rec", "champion")
    assert (caught.value.code, held(client)) == (REFUSED, "1")


def test_rollback_to_a_deleted_or_unusable_version_is_refused(
    settings: Settings, client: Any, rec: Callable[..., str], room: dict[str, Tried]
) -> None:
    for version in "12":
        rec()
        promote(settings, to(version))
    room["1"] = Tried("its files are gone (x)")
    with pytest.raises(Refusal, match="its files are gone"):
        rollback(settings, "rec", "champion")
    client.delete_model_version("rec", "1")
    with pytest.raises(UserError, match="The previous version of rec, 1, was deleted") as caught:
        rollback(settings, "rec", "champion")
    assert (caught.value.code, held(client)) == (REFUSED, "2")


def die(*words: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("refused_since", [False, True])
def test_rollback_undoes_a_promotion_interrupted_right_after_the_move(
    refused_since: bool, settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        rec()
    promote(settings, to("1"))
    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "close", die)
        with pytest.raises(KeyboardInterrupt):
            promote(settings, to("2"))
    assert (held(client), history(settings, "rec")[-1].outcome) == ("2", "started")
    with pytest.raises(Refusal, match="is moving rec@champion at this moment"):  # its writer may be alive
        rollback(settings, "rec", "champion")
    monkeypatch.setattr(alias_lock, "LIVE_SECONDS", 0.0)
    if refused_since:
        rec()
        gated(settings, "size_mb: 0.1")
        with pytest.raises(Refusal, match=r"size \(MB\)"):
            promote(settings, to("3"))
    assert rollback(settings, "rec", "champion").version == held(client) == "1"


def test_rollback_ignores_a_promotion_interrupted_before_the_move(
    settings: Settings, client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in "123":
        rec()
        if version != "3":
            promote(settings, to(version))
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "set_registered_model_alias", die)
        with pytest.raises(KeyboardInterrupt):
            promote(settings, to("3"))
    monkeypatch.setattr(alias_lock, "LIVE_SECONDS", 0.0)
    assert rollback(settings, "rec", "champion").version == held(client) == "1"


def test_event_of_another_format_raises_user_error(settings: Settings, client: Any, rec: Callable[..., str]) -> None:
    rec()
    event = promote(settings, to())
    client.set_tag(event.id, "orchestrator.event", json.dumps({**event.to_json(), "format": 2}))
    with pytest.raises(UserError, match="an event of another format: got 2; allowed: 1"):
        rollback(settings, "rec", "champion")


# The files of a version


def test_timeout_of_the_artifact_store_is_retried_then_raises_user_error(
    client: Any, rec: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, asked = registry.version(client, "rec", rec(gain=1.0)), []
    (tmp_path / "MLmodel").touch()

    def fetch(uri: str, dst_path: str) -> str:
        assert mlflow.get_tracking_uri() == mlflow.get_registry_uri() == client.tracking_uri
        asked.append(uri)
        if len(asked) < answers:
            raise OSError(trouble)
        return str(tmp_path)

    monkeypatch.setattr("mlflow.artifacts.download_artifacts", fetch)
    monkeypatch.setattr(isolated_check, "WAITS", (0.0, 0.0, 0.0))
    trouble, answers = "HTTPConnectionPool(host='mlflow'): Read timed out.", 3
    before = mlflow.get_tracking_uri()
    with isolated_check.fetched(client, "rec", version) as folder:
        assert folder == tmp_path
        assert mlflow.get_tracking_uri() == before
    assert asked == [f"models:/rec/{version.version}"] * 3
    answers = 9
    with (
        pytest.raises(UserError, match=r"could not be fetched from .*timed out") as found,
        isolated_check.fetched(client, "rec", version),
    ):
        pass
    assert found.value.code == UNAVAILABLE
    assert len(asked) == 6
    for cause in ("No such artifact", "No such artifact: mlflow-artifacts:/503/connections/MLmodel"):
        trouble = cause
        with (
            pytest.raises(isolated_check.Unusable, match=r"its files are gone \(No such artifact"),
            isolated_check.fetched(client, "rec", version),
        ):
            pass
    assert len(asked) == 8


def test_full_disk_during_the_fetch_of_a_version_raises_user_error(
    client: Any, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = registry.version(client, "rec", rec(gain=1.0))
    full = "The following failures occurred while downloading: OSError(28, 'No space left on device')"
    monkeypatch.setattr("mlflow.artifacts.download_artifacts", Mock(side_effect=MlflowException(full)))
    with (
        pytest.raises(UserError, match=r"cannot be copied to .* Free space there, or set TMPDIR") as found,
        isolated_check.fetched(client, "rec", version),
    ):
        pass
    assert found.value.code == UNAVAILABLE


# The clean process


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("raise ValueError('first\\nsecond')", "it does not load and predict: ValueError: first"),
        (
            "import nowhere",
            "it does not load and predict: ModuleNotFoundError: No module named 'nowhere'" + isolated_check.IMPORTS,
        ),
        ("import os; os._exit(7)", "it ends the process that loads it: exit code 7, no message"),
        ("time.sleep(600)", "it did not load and predict within 1 s"),
    ],
)
def test_failures_while_loading_a_model_are_reported_with_the_cause(
    does: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real probe runs, except for its import of MLflow, which takes seconds."""
    text = isolated_check.PROBE.read_text()
    assert "    import mlflow\n" in text
    probe = tmp_path / "probe.py"
    probe.write_text(text.replace("    import mlflow\n", f"    {does}\n"))
    monkeypatch.setattr(isolated_check, "PROBE", probe)
    monkeypatch.setattr(isolated_check, "SECONDS", 1.0 if "sleep" in does else isolated_check.SECONDS)
    with pytest.raises(isolated_check.Unusable) as found:
        isolated_check.measure(tmp_path)
    assert str(found.value) == says


def test_crash_of_a_model_is_reported_without_waiting_for_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '3600'])\n"  # it inherits the standard error of the probe
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "sys.stderr.write('x' * 5_000_000 + ' the end\\n')\n"
        "sys.stderr.flush()\n"
        "os._exit(7)\n"
    )
    monkeypatch.setattr(isolated_check, "PROBE", probe)
    with pytest.raises(
        isolated_check.Unusable, match=r"it ends the process that loads it: exit code 7, x+ the end$"
    ) as found:
        isolated_check.measure(tmp_path)
    assert len(str(found.value)) < 400
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it is still running


# The evidence of a version


def test_evidence_of_a_version_is_gathered_from_its_run(client: Any, rec: Callable[..., str]) -> None:
    found = gather(client, registry.version(client, "rec", rec(gain=1.0)))
    assert (found.fingerprint, found.data, found.metric_names) == ("f", {"dataset": "a"}, {"ndcg_at_20"})
    assert found.units is not None
    assert found.units["ndcg_at_20"].to_dict() == {i: 1 + i / 1000 for i in range(50)}


def test_own_data_is_identified_by_the_digests_of_its_input_files(client: Any, rec: Callable[..., str]) -> None:
    found = []
    for digest in ("a", "a", "b"):
        version = registry.version(client, "rec", rec(**{"orchestrator.data_fingerprint": "none"}))
        client.log_dict(version.run_id, {"inputs": {"points": digest}}, "environment.json")
        found.append(gather(client, version))
    assert incomparable(found[0], found[1]) is None
    assert str(incomparable(found[1], found[2])).startswith("version 2 was validated on other data: ")


def test_evidence_of_a_version_without_a_run_is_empty(client: Any, rec: Callable[..., str], tmp_path: Path) -> None:
    rec(**{"orchestrator.data_fingerprint": "none"})
    alone = client.create_model_version("rec", str(tmp_path / "theirs"))
    assert gather(client, registry.version(client, "rec", "1")).fingerprint is None
    gone = SimpleNamespace(version="3", run_id="0" * 32)
    for version in (alone, gone):
        found = gather(client, version)
        assert (found.spec, found.fingerprint, found.metric_names, found.units) == (None, None, set(), None)


def test_a_gateways_404_does_not_mean_that_a_run_was_erased(client: Any) -> None:
    gateways = MlflowException("failed with error code 404", error_code=ENDPOINT_NOT_FOUND)
    with pytest.raises(MlflowException):
        registry.existing_run(SimpleNamespace(get_run=Mock(side_effect=gateways)), "0" * 32)
    assert registry.existing_run(client, "0" * 32) is None


# Commands


def typed(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = app.run(line.split())
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_gate_table_is_printed_before_the_refusal(
    settings: Settings, rec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    rec()
    gated(settings, "size_mb: 0.5")
    code, out, err = typed("promote rec --to champion", capsys)
    assert code == REFUSED
    for words in (("gate", "before", "after", "verdict", "note"), ("size (MB)", "1", "refused", "at most 0.5")):
        assert any(all(word in line for word in words) for line in out.splitlines()), out
    assert err.startswith("error: rec@champion does not move to version 1, refused by size (MB): at most 0.5.")
    assert err.count("\n") == 1


def test_json_output_is_one_line_also_for_a_refusal(
    settings: Settings, rec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    rec()
    code, out, err = typed("promote rec --to champion --json --reason first", capsys)
    assert (code, err, out.count("\n")) == (DONE, "", 1)
    assert {name: json.loads(out)[name] for name in ("model", "alias", "version", "before", "reason", "outcome")} == {
        "model": "rec", "alias": "champion", "version": "1", "before": None, "reason": "first", "outcome": "done",
    }  # fmt: skip
    rec()
    gated(settings, "size_mb: 0.5")
    code, out, err = typed("promote rec --to champion --json", capsys)
    assert (code, out.count("\n"), json.loads(out)["gates"][-1]["verdict"]) == (REFUSED, 1, "refused")
    code, out, err = typed("promotions rec --json", capsys)
    assert (code, err, [event["outcome"] for event in json.loads(out)]) == (DONE, "", ["done", "refused"])


def test_promote_rollback_and_promotions_print_the_result_in_words(
    settings: Settings, rec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    rec()
    assert typed("promotions rec", capsys)[1] == "rec has not been promoted yet\n"
    rec()
    assert typed("promote rec --to champion --version 1", capsys)[1].endswith("rec@champion is now version 1\n")
    assert typed("promote rec --to champion --version 1", capsys)[1] == "rec@champion is version 1 already\n"
    assert "is now version 2 (was version 1)" in typed("promote rec --to champion", capsys)[1]
    assert "is now version 1 (was version 2)" in typed("rollback rec --alias champion --reason bad", capsys)[1]
    code, out, _ = typed("promotions rec", capsys)
    assert [line.split("│")[2].strip() for line in out.splitlines() if "done" in line] == [
        "promote", "promote", "rollback",
    ]  # fmt: skip
    assert (code, "bad" in out) == (DONE, True)
    assert typed("promotions recc", capsys)[0] == USAGE


def test_promotion_sends_a_gate_notification(
    settings: Settings, rec: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rec()
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", f"cmd: tee {tmp_path / 'told.json'}")
    typed("promote rec --to champion", capsys)
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["event"], told["status"], told["message"]) == ("gate", "done", "rec@champion is now version 1")


def test_gates_file_is_read_from_the_option_or_the_environment_variable(
    settings: Settings, rec: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rec()
    (tmp_path / "strict.yaml").write_text("default: {size_mb: 0.5}")
    assert typed(f"promote rec --to champion --gates {tmp_path / 'strict.yaml'}", capsys)[0] == REFUSED
    monkeypatch.setenv("ORCHESTRATOR_GATES", str(tmp_path / "strict.yaml"))
    assert typed("promote rec --to champion", capsys)[0] == REFUSED
    monkeypatch.delenv("ORCHESTRATOR_GATES")
    assert typed("promote rec --to champion", capsys)[0] == DONE
    assert aliases.history(settings, "rec")[-1].outcome == "done"
