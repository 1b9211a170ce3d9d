"""Values within an epoch and their means, in workloads, packs and the engine's rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.cluster import preflight
from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.engine.loop import Row, run_epochs
from orchestrator.errors import UserError
from tests.support.small_vera import SMALL as SMALL_VERA
from tests.support.toy import Toy
from tests.unit.workloads.lifelong.test_conformance import SMALL as SMALL_LIFELONG
from tests.unit.workloads.text_ranker.test_workload import SMALL
from workloads.contract import Runtime, StepLogged
from workloads.lifelong.workload import Lifelong
from workloads.recommender.workload import Recommender
from workloads.step_log import StepLog
from workloads.text_ranker.params import Params
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=2, log_every=2)


def test_logged_value_is_the_mean_over_its_steps_or_the_remaining_ones() -> None:
    log = StepLog(3, torch.device("cpu"))
    for step in range(1, 6):
        log.add(step, torch.tensor(float(step)), 0.5)
    assert [(one.step, one.metrics["loss"]) for one in log.take()] == [(3, 1.0), (5, 2.25)]
    assert log.take() == []
    unused = StepLog(0, torch.device("cpu"))
    unused.add(1, torch.ones(()))
    assert unused.take() == []


def test_micro_batches_are_summed_per_step_and_pack_members_kept_apart() -> None:
    log = StepLog(1, torch.device("cpu"))
    log.add(4, torch.tensor(1.0), last=False)
    assert log.take() == []
    log.add(4, torch.tensor(2.0))
    assert [(one.step, one.metrics["loss"]) for one in log.take()] == [(4, 3.0)]
    members = StepLog(2, torch.device("cpu"), members=2)
    for step in (1, 2):
        members.add(step, torch.tensor([1.0, 3.0]) * step)
    assert [(one.step, one.metrics["loss"]) for one in members.take(1, after=6)] == [(8, 4.5)]
    assert [(one.step, one.metrics["loss"]) for one in members.take(0)] == [(2, 1.5)]


@pytest.mark.parametrize(
    ("workload", "params"),
    [
        (Recommender, {"dim": 8, "batch_size": 4096}),
        (Recommender, {"dim": 8, "batch_size": 4096, "optimizer": "sgd_batched"}),
        (Vera, SMALL_VERA),
        (Lifelong, SMALL_LIFELONG),
    ],
)
def test_step_values_average_to_the_epoch_loss_and_do_not_change_it(workload: Any, params: dict[str, Any]) -> None:
    """Covers micro-batches and the second epoch, whose step numbers continue those of the first."""
    runtime = replace(RUNTIME, accumulate=2, epochs=3, log_every=1)
    built = workload(workload.Params(**params), runtime)
    plain = workload(workload.Params(**params), replace(runtime, log_every=0))
    assert built.train_epoch(1) == plain.train_epoch(1)
    steps = len(built.take_steps())
    metrics = built.train_epoch(2)
    assert metrics == plain.train_epoch(2)
    assert plain.take_steps() == []
    values = built.take_steps()
    assert [one.step for one in values] == list(range(steps + 1, 2 * steps + 1))
    examples = {Recommender: lambda: built.data.pairs.shape[1], Lifelong: lambda: len(built.data.train)}
    size = built.params.batch_size
    count = examples[workload]() if workload in examples else steps * size
    sizes = [min(size, count - size * step) for step in range(steps)]
    mean = sum(one.metrics["loss"] * share / count for one, share in zip(values, sizes))
    assert mean == pytest.approx(metrics["loss"], rel=1e-5)


def test_packed_trials_log_the_step_values_of_separate_trials() -> None:
    def trials() -> list[Recommender]:
        return [
            Recommender(Recommender.Params(dim=8, batch_size=1000, lr=0.01 * seed), replace(RUNTIME, seed=seed))
            for seed in (1, 2)
        ]

    together = trials()
    assert len({member.pack_shape() for member in together}) == 1
    Recommender.pack(together).train_epoch([1, 2])
    for member, one, epoch in zip(together, trials(), (1, 2)):
        one.train_epoch(epoch)
        packed, expected = member.take_steps(), one.take_steps()
        assert [value.step for value in packed] == [value.step for value in expected]
        values, apart = ([value.metrics["loss"] for value in rows] for rows in (packed, expected))
        assert values == pytest.approx(apart, rel=1e-6)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"optimizer": "sgd", "threads": 1}, "in compiled passes; .* rules out log_every=2. Leave it out"),
        ({"backbone": "ease"}, "backbone=ease is fitted as a whole, which rules out log_every=2. Leave it out"),
    ],
)
def test_log_every_is_refused_for_training_without_steps(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recommender(Recommender.Params(**params), RUNTIME)


def test_engine_rows_contain_the_step_values_of_their_epoch() -> None:
    ranker = TextRanker(Params(**SMALL), RUNTIME)
    assert isinstance(ranker, StepLogged)
    rows = [row for report in run_epochs(ranker, Plan(epochs=2, refit=False, log_every=2)) for row in report.rows]
    steps = ranker.group_sampler.steps_per_pass
    per_epoch = -(-steps // 2)
    assert [len(row.steps) for row in rows] == [per_epoch] * 2
    ends = [step for row in rows for step, _, _ in row.steps]
    assert ends == [min(2 * (n + 1), steps) + epoch * steps for epoch in (0, 1) for n in range(per_epoch)]
    for row in rows:
        assert Row(*row.to_json()).to_json() == row.to_json()
        sizes = [min(2, steps - 2 * n) for n in range(per_epoch)]
        means = [values["train_steps/loss"] for _, _, values in row.steps]
        queries = [min(8, len(ranker.group_sampler.queries) - 8 * step) for step in range(steps)]
        if len(set(queries)) == 1:  # otherwise the means over queries and over steps differ
            mean = sum(size * value for size, value in zip(sizes, means)) / steps
            assert mean == pytest.approx(row.metrics["train/loss"], rel=1e-5)
        assert all(value > 0 for value in means)
        assert all(one[1] <= other[1] for one, other in pairwise(row.steps)), "times must not decrease"
    plain = TextRanker(Params(**SMALL), replace(RUNTIME, log_every=0))
    ranker = TextRanker(Params(**SMALL), RUNTIME)
    assert plain.train_epoch(1) == ranker.train_epoch(1), "logging must not change training"


def test_log_every_is_refused_without_step_values_and_keeps_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workload_loader, "code", lambda name: Toy)
        with pytest.raises(UserError, match="The workload toy reports no values within an epoch: got log_every=5"):
            preflight.limits("toy", {}, Resources(), Plan(log_every=5))
    preflight.limits("text_ranker", {}, Resources(), Plan(log_every=5))
    one, other = (ExperimentSpec(workload="text_ranker", params={}, plan=Plan(log_every=n)) for n in (0, 5))
    assert one.fingerprint() == other.fingerprint()
