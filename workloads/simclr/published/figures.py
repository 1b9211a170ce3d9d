"""Figures 6.8 to 6.10, of the numerical experiment and of a trained encoder, and table 6.8, whose values are times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workloads.published import Computation, Curve, Drawn, Figure, Line, Method, Panel, Point, Trained
from workloads.simclr.published.tables import ENCODER, LARGE, THESIS

VARIED: Mapping[str, tuple[str, Sequence[float]]] = {
    "alpha": ("α", (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    "tau": ("τ+", (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
    "negatives": ("N", (16, 32, 64, 128, 256, 512)),
    "gamma": ("γ", (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)),
    "temperature": ("t", (0.3, 0.5, 0.7, 1.0, 1.5, 2.0)),
}
"""Values of each parameter in figure 6.9, around α .9, γ .1, τ+ .1, t .5, N 64 of thesis 6.6.1.4."""

REPEATED = 10
"""Draws of M = 1000 anchors for each point."""


def mean_squared_errors(quick: bool) -> Drawn:
    """Figure 6.9, with scores in [-.5, .5] and, as a table, in [-1/t², 1/t²] (E-6.6.1b)."""
    from workloads.simclr.published.estimators import squared_errors

    curves = [
        replace(curve, log="xy" if parameter == "negatives" else "y")
        for parameter in VARIED
        for curve in _over(parameter, squared_errors, quick, "mean squared error")
    ]
    cells = [_cell(c.panel, x, c.name, mean, sd, 0.5) for c in curves for x, mean, sd in zip(c.x, c.y, c.sd)]
    wide = _repeated(squared_errors, quick, {"reach": 4.0})
    cells += [_cell("reach", 4.0, name, mean, sd, 4.0) for name, (mean, sd) in wide.items()]
    return Drawn(curves, {"mse": cells})


def means(quick: bool) -> Drawn:
    """Figure 6.10: means of target and estimators over γ (a) and α (b); BCL and DCL follow the target."""
    from workloads.simclr.published.estimators import estimates

    def averaged(setting: Any, generator: Any) -> dict[str, float]:
        target, estimated = estimates(setting, generator)
        return {"true negatives": target.mean().item(), **{name: x.mean().item() for name, x in estimated.items()}}

    return Drawn([c for name in ("gamma", "alpha") for c in _over(name, averaged, quick, "mean of e^(x / t)")])


def simulated_scores(quick: bool) -> Drawn:
    """Figure 6.8: densities of e^(x / t) of true and false negatives with φ = N(0, 1), t = 2, M = 1, N = 20,000."""
    import torch

    from workloads.seeding import generator
    from workloads.simclr.published.estimators import accept_false, accept_true, places

    count = 2_000 if quick else 20_000
    bins = 60
    high = 4.0
    middles = [(index + 0.5) * high / bins for index in range(bins)]
    curves = []
    for alpha in (0.5, 0.7, 0.9, 1.0):
        for name, accept in (("true negatives", accept_true), ("false negatives", accept_false)):
            drawn = places((count,), accept, alpha, generator(0, f"{name} {alpha}"))
            scores = (torch.special.ndtri(drawn) / 2).exp()
            density = torch.histc(scores, bins, 0, high) * bins / (high * count)
            curves.append(Curve(
                middles, density.tolist(), name=name, panel=f"α = {alpha}", x_label="e^(x / t)", y_label="density",
                note=f"mean {scores.mean():.2f}",
            ))  # fmt: skip
    return Drawn(curves)


def trained_scores(runs: Sequence[Trained]) -> Iterator[Curve]:
    """Figure 6.8 for an encoder: densities of the cosines of test images, by label."""
    import pyarrow.parquet as pq

    table = pq.read_table(runs[0].tables / "scores.parquet").to_pydict()
    panel = f"{runs[0].params['loss']}, {runs[0].epochs} epochs"
    auc = runs[0].metrics["test/auc"]
    for name in ("true_negatives", "false_negatives"):
        yield Curve(
            table["score"], table[name], name=name.replace("_", " "), panel=panel, x_label="cosine", y_label="density",
            note=f"AUC {auc:.3f}",
        )  # fmt: skip


def _over(parameter: str, measure: Any, quick: bool, y_label: str) -> Iterator[Curve]:
    """The measured values over those of a parameter, one curve per name."""
    label, values = VARIED[parameter]
    spots = [_repeated(measure, quick, {parameter: value}) for value in values]
    for name in spots[0]:
        means, spreads = zip(*(spot[name] for spot in spots))
        yield Curve(values, means, spreads, name=name, panel=label, x_label=label, y_label=y_label)


def _repeated(measure: Any, quick: bool, changed: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the measured values, over draws of the experiment."""
    from statistics import fmean, stdev

    from workloads.seeding import generator
    from workloads.simclr.published.estimators import Setting

    setting = Setting(**{"anchors": 100 if quick else 1000, **changed})
    measured = [measure(setting, generator(repeat, "estimators")) for repeat in range(2 if quick else REPEATED)]
    columns = {name: [one[name] for one in measured] for name in measured[0]}
    return {name: (fmean(column), stdev(column)) for name, column in columns.items()}


def _cell(label: str, x: float, name: str, mean: float, sd: float | None, reach: float) -> dict[str, Any]:
    return {"varied": label, "value": x, "scores within": reach, "estimator": name, "mse": mean, "sd": sd}


_LINES = tuple(
    Line(name, Method({"encoder": "resnet18", "loss": loss, "batch_size": 256}), (Point(epochs=1), Point(epochs=40)))
    for name, loss in (("SimCLR", "infonce"), ("BCL", "bcl"))
)

_TIMED = tuple(
    Line(name, Method({**ENCODER, "loss": loss, "batch_size": 256}))
    for name, loss in (("SimCLR", "infonce"), ("BCL", "bcl"))
)

FIGURES = (
    Figure(
        "thesis-6.8", "Seconds of an epoch", "thesis 6.6.5, table 6.8", THESIS, "seconds",
        (Panel("dataset", "seconds an epoch", _TIMED),), on=LARGE,
    ),
    Computation(
        "thesis-fig6.8", "Scores of true and false negatives, simulated", "thesis 6.6.1.2, figure 6.8", "simclr",
        simulated_scores,
    ),
    Figure(
        "thesis-fig6.8-trained", "Scores of true and false negatives of a trained encoder",
        "after thesis 6.6.1.2, figure 6.8", THESIS, trained_scores, (Panel("cosine", "density", _LINES),), seeds=1,
    ),
    Computation(
        "thesis-fig6.9", "Mean squared error of the estimators", "thesis 6.6.1.4, figure 6.9", "simclr",
        mean_squared_errors,
    ),
    Computation("thesis-fig6.10", "Means of the estimators", "thesis 6.6.1.4, figure 6.10", "simclr", means),
)  # fmt: skip
