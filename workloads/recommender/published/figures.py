"""The published figures that runs can redraw: what is varied, what is measured, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workloads.recommender.published import methods
from workloads.recommender.published.rows import Method

Kind = Literal["values", "epochs", "seconds", "credence", "scores", "theory"]
"""What a figure shows: values on test over a parameter, a metric over epochs, seconds an epoch over the datasets,
the ROC of the credence, densities of scores, or densities by formula."""


@dataclass(frozen=True)
class Point:
    """A place on the x axis, and the parameters of the run that is measured there."""

    x: float
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One curve: a method whose rates are chosen once, at its own settings, for all of its points."""

    name: str
    method: Method
    points: tuple[Point, ...] = (Point(0.0),)
    backbone: str = "mf"


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``metric`` is a metric on test, or with its prefix one of an epoch."""

    x: str
    metric: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """``reads_test``: what is measured in training is told by the test part, as in the thesis."""

    id: str
    title: str
    source: str
    kind: Kind
    panels: tuple[Panel, ...] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    reads_test: bool = False


def _points(name: str, values: tuple[float, ...]) -> tuple[Point, ...]:
    return tuple(Point(value, {name: value}) for value in values)


_CLEAN = {"split": "clean"}
_NOISE = _points("dataset_noise", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
_EPOCHS = tuple(Point(float(epoch)) for epoch in (1, 5, 20, 100))
_QUALITY = {"quality": True, "truth": "test"}

_NOISY = tuple(Line(name, methods.DENOISING[name], _NOISE) for name in ("BPR", "DenoiseRec", "BPRAC"))
_FIVE = tuple(Line(name, methods.DENOISING[name]) for name in ("BPR", "GBPR", "MPR", "DenoiseRec", "BPRAC"))
_POSTERIOR = Method({**methods.BPR.params, "sampler": "bns_posterior", "candidates": 5})
_SAMPLERS = (
    *(Line(name, method) for name, method in methods.SAMPLING.items()),
    Line("posterior (4.29)", _POSTERIOR),
)
_DPL = methods.CONTRASTIVE["DPL"]
_PRINTED = methods.as_printed(methods.BNS)
_BATCH_BNS = Method({**methods.BNS.params, "ecdf": "batch"})


def _dpl(name: str, values: tuple[float, ...]) -> tuple[Line, ...]:
    points = _points(name, values)
    return tuple(Line(label, _DPL, points, backbone) for label, backbone in (("MF", "mf"), ("LightGCN", "lightgcn")))


_ALL = (
    Figure(
        "thesis-figure-3.4", "ROC of the credence", "thesis 3.5.2, figure 3.4", "credence",
        (Panel("false positive rate", "true positive rate",
               tuple(Line(name, methods.DENOISING[name]) for name in ("BPRAC", "BPRAC, mean1", "BPRAC, bayes"))),),
        _CLEAN,
    ),
    Figure(
        "thesis-figure-3.5", "Noise in the training part", "thesis 3.5.2, figure 3.5", "values",
        tuple(Panel("share of noise", metric, _NOISY) for metric in ("auc", "ndcg_at_10")), _CLEAN,
    ),
    Figure(
        "thesis-figure-3.6", "Convergence of the AUC", "thesis 3.5.2, figure 3.6", "epochs",
        (Panel("epoch", "validation/auc", _FIVE),), _CLEAN,
    ),
    Figure(
        "thesis-figure-4.2", "Scores of true and false negatives", "thesis 4.3.1.1, figure 4.2", "scores",
        (Panel("score", "density", (Line("RNS", methods.BPR, _EPOCHS),)),),
    ),
    Figure("thesis-figure-4.3", "Scores of true and false negatives, in theory", "thesis (4.7), (4.8), figure 4.3",
           "theory"),
    Figure(
        "thesis-figure-4.4", "Sampling quality", "thesis 4.5.2.2, figure 4.4", "epochs",
        tuple(Panel("epoch", metric, _SAMPLERS) for metric in ("train/tnr", "train/inf")), _QUALITY, reads_test=True,
    ),
    Figure(
        "thesis-figure-4.5", "λ and the candidates of BNS", "thesis 4.5.2.3, figure 4.5", "values",
        (Panel("λ", "ndcg_at_20", (Line("BNS", _PRINTED, _points("bns_lambda", (0.1, 1.0, 5.0, 10.0, 15.0))),)),
         Panel("|M_u|", "ndcg_at_20", (Line("BNS", _PRINTED, _points("candidates", (1, 3, 5, 10, 15))),))),
    ),
    Figure(
        "thesis-figure-5.3", "M, N and τ+ of DPL", "thesis 5.6.2.2, figure 5.3", "values",
        (Panel("M", "ndcg_at_20", _dpl("positives", (0, 1, 3, 5, 10, 15))),
         Panel("N", "ndcg_at_20", _dpl("negatives", (1, 3, 5, 10, 15))),
         Panel("τ+", "ndcg_at_20", _dpl("tau", (0.0, 0.03, 0.06, 0.1, 0.2, 0.3)))),
    ),
    Figure(
        "thesis-figure-5.4", "Seconds of an epoch", "thesis 5.6.2.3, figure 5.4", "seconds",
        (Panel("dataset", "seconds an epoch",
               (Line("BPR", methods.BPR), Line("DPL", _DPL), Line("BNS, eCDF of the batch", _BATCH_BNS))),),
    ),
)  # fmt: skip

FIGURES: Mapping[str, Figure] = {figure.id: figure for figure in _ALL}
"""By id, such as ``thesis-figure-4.5``."""
