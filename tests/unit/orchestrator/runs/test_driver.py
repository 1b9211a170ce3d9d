"""A run in this process that is interrupted and resumed: what it prints."""

from __future__ import annotations

import pytest

from orchestrator import api
from orchestrator.cluster.interrupts import Interrupts
from orchestrator.errors import Interrupted
from tests.support.toy import Toy
from workloads.contract import Metrics

RUN = {"tracking": "none", "epochs": 6, "refit": True, "name": "r1"}


def interrupted(workload: str | None, after: int, monkeypatch: pytest.MonkeyPatch, **given: object) -> None:
    """Start or resume a run and stop it after ``after`` further epochs."""
    trained = []
    train = Toy.train_epoch

    def counted(toy: Toy, epoch: int) -> Metrics:
        trained.append(epoch)
        return train(toy, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "train_epoch", counted)
        patch.setattr(Interrupts, "stop_requested", lambda interrupts: len(trained) >= after)
        with pytest.raises(Interrupted):
            api.run(workload, **given)  # type: ignore[arg-type]


def test_a_resume_says_where_it_continues(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    again = {"resume": "r1", "tracking": "none"}
    interrupted(toy_workload, 2, monkeypatch, **RUN)
    capsys.readouterr()
    interrupted(None, 5, monkeypatch, **again)
    assert "Resuming r1 from its checkpoint at epoch 2 of 6" in capsys.readouterr().out
    result = api.run(**again)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert "Resuming r1 from its checkpoint at refit epoch 1 of 3" in out
    assert f"({result.extra['epochs']} epochs, refitted on train + validation)" in out


def test_a_run_without_a_checkpoint(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no start")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.runs.driver.in_process", fail)
        with pytest.raises(RuntimeError):
            api.run(toy_workload, **(RUN | {"epochs": 1}))  # type: ignore[arg-type]
    api.run(resume="r1", tracking="none")
    out = capsys.readouterr().out
    assert "Resuming r1 from the beginning: it has no checkpoint" in out
    assert "(1 epoch, refitted on train + validation)" in out
