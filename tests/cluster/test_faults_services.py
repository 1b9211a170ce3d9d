"""The driver, the database and MLflow fail during a submitted sweep: no row is lost or doubled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from tests.cluster.topology import CPUS, NODES, STARTING_SECONDS, Job, User
from tests.support.commands import SPACES, trials

SEARCH = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "refit=false"]
OUTAGE_SECONDS, RESTARTS = 60, 3


def sweep(user: User, count: int, at_once: int, epochs: int, epoch_seconds: float) -> Job:
    """Submit a sweep of ``count`` trials, of which ``at_once`` run at the same time over all nodes."""
    share = NODES * CPUS / at_once
    return user.submit(
        *SEARCH, "--trials", str(count), "--cpus-per-worker", f"{share:g}", f"epochs={epochs}", f"slow={epoch_seconds}"
    )


def writing(user: User) -> set[str]:
    """The trials that have rows in MLflow."""
    return {key for key in user.store.steps() if "/" in key}


def rows(user: User) -> Counter[tuple[str, str, int]]:
    """How often each (run, metric, step) of a trial occurs in the database."""
    return Counter(
        user.store.query(
            "select m.run_uuid, m.key, m.step from metrics m join tags t on t.run_uuid = m.run_uuid "
            "where t.key = 'orchestrator.key' and t.value like '%/%'"
        )
    )


def check_rows(user: User, count: int, epochs: Iterable[int]) -> str:
    """Check that every trial has every metric at every epoch once; return a summary with the numbers of rows."""
    found = rows(user)
    metrics = {metric for _, metric, _ in found if metric.startswith(("train/", "validation/"))}
    runs = {run for run, _, _ in found}
    assert len(runs) == count
    assert metrics == {"train/loss", "validation/error", "validation/x"}
    expected = {(run, metric, epoch) for run in runs for metric in metrics for epoch in epochs}
    lost = expected - found.keys()
    doubled = [row for row, times in found.items() if times > 1]
    assert not lost
    assert not doubled
    user.store.check()
    return f"{len(expected)} rows expected, lost {len(lost)}, doubled {len(doubled)}"


def test_submitted_sweep_resumes_after_its_driver_is_killed(user: User) -> None:
    count, epochs = 6, 12
    first = sweep(user, count, 4, epochs, 0.3)
    first.until(lambda: first.completed() and len(writing(user)) > 1, STARTING_SECONDS)
    first.kill_driver()
    killed = time.time()
    assert first.end() == 1, first.text()
    assert "is lost" in first.text()
    done = first.completed()
    assert done < count

    second = user.submit("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    assert second.completed() == count - done, "a finished trial was repeated"
    assert [row["trial"] for row in trials(user.home)] == list(range(count))
    told = check_rows(user, count, range(1, epochs + 1))
    (later,) = user.store.query(f"select min(timestamp) from metrics where timestamp > {1000 * (killed + 1):.0f}")
    print(f"\ndriver killed: the next epoch {later[0] / 1000 - killed:.1f} s after; {told}")


def test_sweep_completes_without_lost_rows_when_the_database_restarts(user: User) -> None:
    count, epochs = 4, 60
    job = sweep(user, count, 4, epochs, 0.3)
    job.until(lambda: len(writing(user)) == count, STARTING_SECONDS)
    away = 0.0
    for _ in range(RESTARTS):
        started = time.time()
        user.topology.restart_postgres()
        away += time.time() - started
        time.sleep(1)
    assert job.end() == 0, job.text()
    assert [row["state"] for row in trials(user.home)] == ["complete"] * count
    told = check_rows(user, count, range(1, epochs + 1))
    print(f"\nPostgreSQL restarted {RESTARTS} times, away for {away:.1f} s: {told}")


def test_a_minute_without_mlflow_loses_no_row_of_eight_trials(user: User) -> None:
    count, epochs = 8, 150
    job = sweep(user, count, 8, epochs, 0.5)
    job.until(lambda: len(writing(user)) == count, STARTING_SECONDS)
    user.topology.stop_mlflow()
    before = rows(user)
    time.sleep(OUTAGE_SECONDS)
    assert rows(user) == before, "no row can arrive while MLflow is down"
    user.topology.start_mlflow()
    back = time.time()
    job.until(lambda: sum(rows(user).values()) > 1.5 * sum(before.values()))
    delivered = time.time() - back
    assert job.end() == 0, job.text()
    assert [row["state"] for row in trials(user.home)] == ["complete"] * count
    told = check_rows(user, count, range(1, epochs + 1))
    print(f"\nMLflow away for {OUTAGE_SECONDS} s under {count} trials, rows {delivered:.1f} s after its return: {told}")
