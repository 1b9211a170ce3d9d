"""The plots of a sweep, or the reason why there are too few trials for one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from orchestrator.report import plots, trials
from orchestrator.search import curves as curves_of
from orchestrator.search import recorded
from orchestrator.search.ranking import front, repeats
from orchestrator.storage.records import RunFolder

if TYPE_CHECKING:
    import optuna

ENOUGH = 4
"""Minimum number of complete trials for parameter importances; with fewer they are noise."""


def of_sweep(folder: RunFolder) -> dict[str, Figure | str]:
    """The plots by name, in the order of the page; instead of a plot without enough data the reason as text.

    Raises UserError when the sweep has no trials yet.
    """
    study = recorded.study(folder)
    objectives = recorded.objectives(folder)
    all_trials = recorded.own(study)
    complete = [trial for trial in all_trials if trial.state == TrialState.COMPLETE]
    winner = trials.best(folder, all_trials, objectives[0])
    number = -1 if winner is None else winner.number
    drawn: dict[str, Figure | str] = {}
    if len(objectives) > 1 and complete:
        drawn["pareto"] = plots.pareto(complete, [trial.number for trial in front(complete, objectives)], objectives)
    if complete:
        drawn["history"] = plots.history(complete, objectives[0])
    curves = trials.learning_curves(folder.path, all_trials, objectives[0].metric)
    drawn["learning"] = (
        plots.learning(curves, (number, 0), objectives[0]) if curves else "No learning curves: no epoch was recorded."
    )
    if over_seeds := curves_of.over_seeds(curves, _with_repeats(all_trials, winner)):
        drawn["seeds"] = plots.seeds(over_seeds, objectives[0])
    names = varied(complete)
    drawn["parallel"] = (
        plots.parallel(complete, names, objectives[0], number)
        if names
        else "No parallel coordinates: they need two different complete trials."
    )
    shares = importance(study, len(complete))
    drawn["importance"] = (
        shares
        if isinstance(shares, str)
        else plots.importance(shares, f"share (PED-ANOVA, {len(complete)} complete trials)")
    )
    return drawn


def _with_repeats(all_trials: Sequence[FrozenTrial], winner: FrozenTrial | None) -> set[int]:
    return set() if winner is None else {winner.number, *(trial.number for trial in repeats(all_trials, winner))}


def varied(complete: Sequence[FrozenTrial]) -> list[str]:
    """The parameters that differ between these trials, in the order of the search space."""
    names = dict.fromkeys(name for trial in complete for name in trial.params)
    return [name for name in names if len({repr(trial.params.get(name)) for trial in complete}) > 1]


def importance(study: optuna.Study, complete: int) -> Mapping[str, float] | str:
    """Importance of each parameter for the best quantile of trials by PED-ANOVA, or the reason why there is none.

    With several objectives it is the importance for the Pareto front.
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
