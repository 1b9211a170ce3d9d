"""Which plots a sweep's trials are enough for, drawn; for the others, why not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from orchestrator.report import plots, trials
from orchestrator.search.ranking import front
from orchestrator.storage.records import RunFolder

if TYPE_CHECKING:
    import optuna

ENOUGH = 4
"""Complete trials below which an importance would be noise."""


def of_sweep(folder: RunFolder) -> dict[str, Figure | str]:
    """The plots by name, in the order in which they are read; a plot there is too little for is the reason instead.

    Raises UserError when the sweep has no trials yet.
    """
    study, objectives = trials.study(folder), trials.objectives(folder)
    found = trials.own(study)
    complete = [trial for trial in found if trial.state == TrialState.COMPLETE]
    winner = trials.best(folder, found, objectives[0])
    number = -1 if winner is None else winner.number
    drawn: dict[str, Figure | str] = {}
    if len(objectives) > 1 and complete:
        drawn["pareto"] = plots.pareto(complete, [trial.number for trial in front(complete, objectives)], objectives)
    if complete:
        drawn["history"] = plots.history(complete, objectives[0])
    curves = trials.learning_curves(folder.path, found, objectives[0].metric)
    drawn["learning"] = (
        plots.learning(curves, (number, 0), objectives[0]) if curves else "No learning curves: no epoch was recorded."
    )
    names = varied(complete)
    drawn["parallel"] = (
        plots.parallel(complete, names, objectives[0], number)
        if names
        else "No parallel coordinates: they need two complete trials that differ."
    )
    shares = importance(study, len(complete))
    drawn["importance"] = (
        shares
        if isinstance(shares, str)
        else plots.importance(shares, f"share (PED-ANOVA, {len(complete)} complete trials)")
    )
    return drawn


def varied(complete: Sequence[FrozenTrial]) -> list[str]:
    """The parameters that differ between these trials, in the order in which they were drawn."""
    names = dict.fromkeys(name for trial in complete for name in trial.params)
    return [name for name in names if len({repr(trial.params.get(name)) for trial in complete}) > 1]


def importance(study: optuna.Study, complete: int) -> Mapping[str, float] | str:
    """Each parameter's share in reaching the best quantile of trials by PED-ANOVA, or why there is none.

    Of several objectives it is the share in reaching the Pareto front.
    """
    if complete < ENOUGH:
        return f"No importance: PED-ANOVA needs {ENOUGH} complete trials, there are {complete}."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shares: Mapping[str, float] = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError) as error:  # no parameter is common to all trials, or none varies
            return f"No importance: {error}"
    return shares or "No importance: no parameter varies."
