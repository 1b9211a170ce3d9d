"""A run of two workers, flat trials, packs and winners, all small, on every supported version of Ray and MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import busy, groups, logical, soon
from tests.support.commands import SPACES, Start, Store, starting, trials

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.versions]  # in CI with the lowest versions
EPOCHS = 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as monkeypatch, logical(monkeypatch, [{"num_cpus": 2}]) as address:
        yield address


@pytest.fixture
def start(home: Path, database: Path, address: str) -> Iterator[Start]:
    with starting(home, "--ray-address", address, f"epochs={EPOCHS}") as begin:
        yield begin
    assert soon(lambda: not busy() and not groups()), "processes or placement groups are left"


def check(home: Path) -> None:
    store = Store(home)
    store.check()
    assert {tuple(steps) for steps in store.steps().values()} == {tuple(range(1, EPOCHS + 1))}, "a row lost or doubled"


def test_run_of_two_workers_completes_with_every_epoch_logged(home: Path, start: Start) -> None:
    run = start("run", "toy", "--workers", "2", "--cpus-per-worker", "1")
    assert run.end() == 0, run.text()
    assert "toy on 2 workers" in run.text()
    check(home)


@pytest.mark.parametrize(
    ("words", "at_once"),
    [
        (["toy", "--space", f"{SPACES}:space", "--pack", "off"], 1),
        (["recommender", "dim=8", "--space", "mf", "--pack", "2"], 2),
    ],
    ids=["flat", "packs"],
)
def test_flat_and_packed_sweeps_complete_and_save_the_winners_model(
    words: list[str], at_once: int, home: Path, start: Start
) -> None:
    """There is room for one process: that of a flat trial or of a pack."""
    sweep = start("sweep", *words, "--trials", "3", "--scheduler", "none", "--cpus-per-worker", "2")
    assert sweep.end() == 0, sweep.text()
    before, _, _ = sweep.text().partition(" complete ")
    assert before.count(" started ") == at_once
    assert [row["state"] for row in trials(home)] == ["complete"] * 3
    assert list(home.glob("storage/*/winner/model/weights.safetensors"))
    check(home)
