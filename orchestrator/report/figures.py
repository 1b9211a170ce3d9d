"""The plots of a sweep, or the reason why there are too few trials for one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import optuna
from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from orchestrator.report import plots, trials
from orchestrator.search import curves as curves_of
from orchestrator.search import members, recorded
from orchestrator.search.ranking import REPEAT, front, ranked, repeats
from orchestrator.storage.records import RunFolder

ENOUGH = 4
"""Minimum number of complete trials for parameter importances; with fewer they are noise."""


def of_sweep(folder: RunFolder) -> dict[str, Figure | str]:
    """The plots by name, in the order of the page; instead of a plot without enough data the reason as text.

    Raises UserError when the sweep has no trials yet.
    """
    study = recorded.study(folder)
    objectives = recorded.objectives(folder)
    all_trials = members.with_present_params(recorded.own(study))
    complete = [trial for trial in all_trials if trial.state == TrialState.COMPLETE]
    may_win = {trial.number for trial in ranked(all_trials, objectives[0])}
    winner = trials.best(folder, all_trials, objectives[0])
    number = -1 if winner is None else winner.number
    drawn: dict[str, Figure | str] = {}
    if len(objectives) > 1 and complete:
        drawn["pareto"] = plots.pareto(complete, [trial.number for trial in front(complete, objectives)], objectives)
    if complete:
        drawn["history"] = plots.history(complete, objectives[0], may_win)
    curves = trials.learning_curves(folder.path, all_trials, objectives[0].metric)
    drawn["learning"] = (
        plots.learning(curves, (number, 0), objectives[0]) if curves else "No learning curves: no epoch was recorded."
    )
    own = set() if winner is None else {number, *(trial.number for trial in repeats(all_trials, winner))}
    if over_seeds := curves_of.over_seeds(curves, own):
        drawn["seeds"] = plots.seeds(over_seeds, objectives[0])
    searched = [trial for trial in complete if REPEAT not in trial.user_attrs]
    names = varied(searched)
    drawn["parallel"] = (
        plots.parallel(searched, names, objectives[0], number, may_win)
        if names
        else "No parallel coordinates: they need two different complete trials."
    )
    shares = importance(searched, study.directions)
    drawn["importance"] = (
        shares
        if isinstance(shares, str)
        else plots.importance(shares, f"share (PED-ANOVA, {len(searched)} complete trials)")
    )
    return drawn


def varied(complete: Sequence[FrozenTrial]) -> list[str]:
    """The parameters that differ between these trials, in the order of the search space."""
    names = dict.fromkeys(name for trial in complete for name in trial.params)
    return [name for name in names if len({repr(trial.params.get(name)) for trial in complete}) > 1]


def importance(complete: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> Mapping[str, float] | str:
    """Importance of each parameter for the best quantile of trials by PED-ANOVA, or the reason why there is none.

    With several objectives it is the importance for the Pareto front.
    """
    if len(complete) < ENOUGH:
        return f"No importance: PED-ANOVA needs {ENOUGH} complete trials, there are {len(complete)}."
    alone = optuna.create_study(directions=directions)  # the sweep's has the trials of a warm start too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            alone.add_trials(complete)  # refuses a value outside its range, such as a member's derived parameter
            shares: Mapping[str, float] = get_param_importances(alone, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError) as error:  # no parameter is common to all trials, or none varies
            return f"No importance: {error}"
    return shares or "No importance: no parameter varies."
