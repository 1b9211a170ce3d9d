"""Toy study and reports, shared by tests of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.plan import Plan
from orchestrator.config.spec import Search, SweepSpec
from orchestrator.engine.loop import Row
from orchestrator.search.study import Study, Trial
from workloads.contract import Objective

ERROR = Objective("error", "min")


def space(trial: Any) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return {"kind": kind, "lr": trial.suggest_float("lr", 0.0, 1.0), "dim": trial.suggest_int("dim", 1, 64)}


def sweep(*, epochs: int = 27, decide_at: Any = (), seed: int = 5, **search: Any) -> SweepSpec:
    """A sweep of the toy; by default of six random trials."""
    return SweepSpec(
        workload="toy",
        plan=Plan(epochs=epochs, refit=True, decide_at=decide_at),
        seed=seed,
        search=Search(**{"trials": 6, "sampler": "random"} | search),
    )


def study(
    folder: Path,
    objectives: Objective | Sequence[Objective] = ERROR,
    *,
    space: Any = space,
    conditional: bool = False,
    **asked: Any,
) -> Study:
    """The study in ``folder``, which is created if needed."""
    folder.mkdir(exist_ok=True)
    named = [objectives] if isinstance(objectives, Objective) else list(objectives)
    return Study(folder, sweep(**asked), named, space, conditional)


def begin(study: Study) -> Trial:
    trial = study.next()
    assert trial is not None
    return trial


def rows(*pairs: tuple[int, float]) -> list[Row]:
    return [Row(epoch, 1.7e9 + epoch, {"train/loss": 1.0, "validation/error": value}) for epoch, value in pairs]


def attributes(value: float, epoch: int = 27, best_epoch: int = 1, **others: float) -> dict[str, Any]:
    """Attributes of a report; ``others`` are further validation metrics of the best epoch."""
    metrics = {"validation/error": value} | {f"validation/{name}": v for name, v in others.items()}
    about: Mapping[str, Any] = {"epoch": epoch, "best_epoch": best_epoch, "best_value": value, "train_seconds": 1.0}
    return {**about, "best_metrics": metrics}


def complete(study: Study, seed_run: int, value: float, *, best_epoch: int = 1, **others: float) -> str:
    """Report the last epoch of a seed run, with ``value`` as its best."""
    epochs = study.spec.plan.epochs
    about = attributes(value, epochs, best_epoch, **others)
    return study.report(seed_run, rows((epochs, value)), value, True, about)


def at_rung(study: Study, seed_run: int, epoch: int, value: float) -> str:
    return study.report(seed_run, rows((epoch, value)), value, False, attributes(value, epoch, epoch))


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in study.trials]
