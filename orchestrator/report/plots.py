"""Plots of sweeps and comparisons, from plain data to a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from orchestrator.runs.plot_style import BLUE, GREY, INK, ORANGE, PAPER, WIDTH, canvas, styled
from orchestrator.search.curves import Curve, SeedPoint
from workloads.contract import Objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SCALE = LinearSegmentedColormap.from_list("orchestrator", ["#b9c2cb", "#6aa5d6", "#12579b"])
"""Colours from worst to best. The best trial is orange."""


def label(objective: Objective) -> str:
    """``ndcg_at_20 on validation`` with an arrow in the direction of better values; of a long name two lines."""
    gap = " " if len(objective.metric) <= 18 else "\n"
    return f"{_short(objective.metric, 34)}{gap}on validation {'↑' if objective.direction == 'max' else '↓'}"


@styled
def history(trials: Sequence[FrozenTrial], objective: Objective, may_win: Container[int]) -> Figure:
    """Values of the first objective by trial number, and the best value so far of the trials that ``may_win``."""
    figure, axes = canvas(3.2)
    competing = [t for t in trials if t.number in may_win]
    others = [t for t in trials if t.number not in may_win]
    if competing:
        numbers = [t.number for t in competing]
        values = [float(t.values[0]) for t in competing]
        best = [*accumulate(values, max if objective.direction == "max" else min)]
        axes.step([*numbers, trials[-1].number], [*best, best[-1]], where="post", color=ORANGE, label="best so far")
        axes.plot(numbers, values, "o", color=BLUE, markersize=5, label="complete trial")
    if others:
        label_of_others = "violates a constraint, or repeats a finalist"
        values = [float(t.values[0]) for t in others]
        axes.plot([t.number for t in others], values, "x", color=GREY, markersize=5, label=label_of_others)
    axes.set(xlabel="trial", ylabel=label(objective))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _legend(figure)
    return figure


@styled
def learning(curves: Mapping[Any, Curve], best: Any, objective: Objective) -> Figure:
    """Learning curves, one line a trial, the ``best`` one in front."""
    figure, axes = canvas(3.2)
    for key, curve in curves.items():
        if key != best:
            axes.plot(*zip(*curve), color=BLUE, alpha=0.4, linewidth=1, marker="." if len(curve) < 8 else None)
    if best in curves:
        text = "the winner" if len(curves) > 1 else None
        axes.plot(*zip(*curves[best]), color=ORANGE, linewidth=2.2, label=text, marker=".", markevery=[-1])
    axes.set(xlabel="epoch", ylabel=label(objective))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if axes.get_legend_handles_labels()[0] and len(curves) > 1:
        _legend(figure)
    return figure


@styled
def seeds(curve: Sequence[SeedPoint], objective: Objective) -> Figure:
    """Mean of the winner's seeds by epoch, with a band of one sample standard deviation."""
    figure, axes = canvas(3.2)
    epochs = [point.epoch for point in curve]
    low = [point.mean - point.spread for point in curve]
    high = [point.mean + point.spread for point in curve]
    axes.fill_between(epochs, low, high, color=ORANGE, alpha=0.25, linewidth=0, label="standard deviation")
    most = max(point.n for point in curve)
    axes.plot(epochs, [point.mean for point in curve], color=ORANGE, linewidth=2.2, label=f"mean of {most} seeds")
    axes.set(xlabel="epoch", ylabel=label(objective))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _legend(figure)
    return figure


@styled
def importance(shares: Mapping[str, float], about: str) -> Figure:
    """Bars of the importance of parameters, the most important on top."""
    figure, axes = canvas(0.33 * len(shares) + 0.9)
    names = sorted(shares, key=lambda name: shares[name])
    bars = axes.barh([_short(name) for name in names], [shares[name] for name in names], color=BLUE, height=0.62)
    axes.bar_label(bars, fmt="%.2f", padding=3, color=INK)
    axes.set(xlabel=about)
    axes.margins(x=0.14)
    axes.grid(axis="y", visible=False)
    return figure


@styled
def pareto(trials: Sequence[FrozenTrial], front: Sequence[int], objectives: Sequence[Objective]) -> Figure:
    """One panel for each pair of objectives; ``front`` are the numbers of the trials on the Pareto front."""
    pairs = [(i, j) for i in range(len(objectives)) for j in range(i + 1, len(objectives))]
    figure = Figure(figsize=(WIDTH, 3.4 * len(pairs)))
    for axes, (i, j) in zip(figure.subplots(len(pairs), 1, squeeze=False)[:, 0], pairs):
        inside = sorted((t.values[i], t.values[j]) for t in trials if t.number in front)
        others = [(t.values[i], t.values[j]) for t in trials if t.number not in front]
        if others:
            axes.plot(*zip(*others), "o", color=BLUE, alpha=0.55, markersize=5, label="complete trial")
        if inside:  # no trial is, while all violate a constraint
            axes.plot(*zip(*inside), "o", color=ORANGE, markersize=6, label="Pareto front")
        if inside and len(objectives) == 2:
            # The boundary of the dominated region is a staircase; its corners are on the worse side.
            axes.step(*zip(*inside), where="post" if objectives[i].direction == "min" else "pre", color=ORANGE)
        axes.set(xlabel=label(objectives[i]), ylabel=label(objectives[j]))
    _legend(figure)
    return figure


@styled
def parallel(
    trials: Sequence[FrozenTrial], names: Sequence[str], objective: Objective, best: int, may_win: Container[int]
) -> Figure:
    """Parallel coordinates: one axis for each parameter (logarithmic as in its distribution) and the objective.

    Trials that ``may_win`` are shaded by their values, the others are dotted.
    """
    figure = Figure(figsize=(max(WIDTH, 1.35 * (len(names) + 1)), 3.6))
    axes = figure.add_subplot()
    columns = [_column(trials, name) for name in names]
    columns.append(_numbers([float(t.values[0]) for t in trials], log=False))
    sign = 1.0 if objective.direction == "max" else -1.0
    scores = [sign * float(t.values[0]) for t in trials]
    shaded = [score for score, t in zip(scores, trials) if t.number in may_win] or scores
    shade = Normalize(min(shaded), max(shaded) if max(shaded) > min(shaded) else min(shaded) + 1)
    xs = range(len(columns))
    for score, number, *ys in sorted(zip(scores, (t.number for t in trials), *(heights for heights, _ in columns))):
        won = number == best
        competes = number in may_win
        strength = float(shade(score)) if competes else 0.0
        colour = ORANGE if won else SCALE(strength) if competes else GREY
        heights = [float("nan") if y is None else y for y in ys]
        axes.plot(
            xs, heights, color=colour, linewidth=2.4 if won else 0.8 + 0.7 * strength, alpha=1 if won else 0.8,
            marker=".", zorder=3 if won else 2, linestyle="-" if competes else ":",
        )  # fmt: skip
    axes.set_xlim(-0.35, len(columns) - 0.5)
    axes.set_ylim(-0.06, 1.06)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.set_xticks(list(xs), [*(_short(name) for name in names), label(objective)])
    if len(columns) > 4:
        axes.tick_params("x", labelrotation=20)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, (_, ticks) in enumerate(columns):
        axes.axvline(x, color=GREY, linewidth=0.8, zorder=1)
        for y, text in ticks:
            axes.annotate(
                text, (x, y), (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=8, color=INK,
                zorder=4, bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            )  # fmt: skip
    return figure


@styled
def groups(named_values: Sequence[tuple[str, Sequence[float]]], metric: str) -> Figure:
    """One row a group: the value of each seed, their mean and spread (sample standard deviation)."""
    from orchestrator.report.statistics import summary

    figure, axes = canvas(0.36 * len(named_values) + 1.2)
    for y, (_, values) in enumerate(named_values):
        one = summary(values)
        names = ("one value", "mean and standard deviation") if y == 0 else (None, None)
        axes.plot(values, [y] * len(values), "o", color=BLUE, alpha=0.55, markersize=5, label=names[0])
        axes.errorbar(
            one.mean, y, xerr=one.spread or None, fmt="D", color=ORANGE, markersize=5, capsize=4, label=names[1]
        )
    axes.set_yticks(range(len(named_values)), [_short(name, 36) for name, _ in named_values])
    axes.set_ylim(len(named_values) - 0.5, -0.5)
    axes.set(xlabel=metric)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


Column = tuple[list[float | None], list[tuple[float, str]]]
"""Heights from 0 to 1, None for a trial without a value, and the ticks of the axis."""


def _column(trials: Sequence[FrozenTrial], name: str) -> Column:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    distribution = next(t.distributions[name] for t in trials if name in t.distributions)
    values = [t.params.get(name) for t in trials]
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        height_of = {repr(choice): i / max(1, len(choices) - 1) for i, choice in enumerate(choices)}
        ticks = [(height_of[repr(choice)], _short(str(choice), 14)) for choice in choices]
        return [height_of.get(repr(v)) if name in t.params else None for v, t in zip(values, trials)], ticks
    heights, ticks = _numbers(values, log=bool(getattr(distribution, "log", False)))
    values_at = {height: value for height, value in zip(heights, values) if height is not None}
    if isinstance(distribution, IntDistribution) and len(values_at) <= 6:
        ticks = [(height, str(value)) for height, value in sorted(values_at.items())]
    return heights, ticks


def _numbers(values: Sequence[float | None], log: bool) -> Column:
    present = [value for value in values if value is not None]
    low = min(present)
    high = max(present)
    if low == high:
        return [None if value is None else 0.5 for value in values], [(0.5, _number(low))]
    scale = LogNorm(low, high) if log else Normalize(low, high)
    middle = [float(scale.inverse(y)) for y in (0, 1 / 3, 2 / 3, 1)]
    ticks = [(float(scale(value)), _number(value)) for value in middle]
    return [None if value is None else float(scale(value)) for value in values], ticks


def _legend(figure: Figure) -> None:
    """A legend of the first panel above the plots, where it covers no point."""
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
