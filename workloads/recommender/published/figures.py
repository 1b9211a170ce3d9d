"""The published figures that runs can redraw: their source, what is varied and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workloads.published import Computation, Draw, Figure, Kind, Line, Panel, Point
from workloads.recommender.published import measures, methods, theory
from workloads.recommender.published.methods import BY, THESIS


def _figure(
    number: str,
    title: str,
    source: str,
    draw: Kind | Draw,
    *panels: Panel,
    common: Mapping[str, Any] | None = None,
    blind: Mapping[str, Any] | None = None,
    seeds: int | None = None,
) -> Figure:
    return Figure(
        f"thesis-fig{number}", title, f"thesis {source}, figure {number}", THESIS, draw, panels,
        common or {}, blind or {}, seeds, BY,
    )  # fmt: skip


def _points(name: str, values: tuple[float, ...]) -> tuple[Point, ...]:
    return tuple(Point(value, {name: value}) for value in values)


_CLEAN = {"split": "clean"}
_NOISE = _points("dataset_noise", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
_EPOCHS = tuple(Point(float(epoch), epochs=epoch) for epoch in (1, 5, 20, 100))

_NOISY = tuple(Line(name, methods.DENOISING[name], _NOISE) for name in ("BPR", "DenoiseRec", "BPRAC"))
_FIVE = tuple(Line(name, methods.DENOISING[name]) for name in ("BPR", "GBPR", "MPR", "DenoiseRec", "BPRAC"))
_POSTERIOR = replace(methods.BPR, params={**methods.BPR.params, "sampler": "bns_posterior", "candidates": 5})
_SAMPLERS = (
    *(Line(name, method) for name, method in methods.SAMPLING.items()),
    Line("posterior (4.29)", _POSTERIOR),
)
_DPL = methods.CONTRASTIVE["DPL"]
_PRINTED = methods.as_printed(methods.BNS)
_BATCH_BNS = replace(methods.BNS, params={**methods.BNS.params, "ecdf": "batch"})


def _dpl(name: str, values: tuple[float, ...]) -> tuple[Line, ...]:
    points = _points(name, values)
    backbones = {"MF": "mf", "LightGCN": "lightgcn"}
    return tuple(Line(label, _DPL, points, {"backbone": backbone}) for label, backbone in backbones.items())


_ALL = (
    _figure(
        "3.4", "ROC of the credence", "3.5.2", measures.credence_roc,
        Panel("false positive rate", "true positive rate",
              tuple(Line(name, methods.DENOISING[name])
                    for name in ("BPRAC", "BPRAC, mean1", "BPRAC, bayes", "BPRAC, prior alone"))),
        common=_CLEAN,
    ),
    _figure(
        "3.5", "Noise in the training part", "3.5.2", "values",
        *(Panel("share of noise", metric, _NOISY) for metric in ("auc", "ndcg_at_10")), common=_CLEAN,
    ),
    _figure("3.6", "Convergence of the AUC", "3.5.2", "epochs", Panel("epoch", "validation/auc", _FIVE), common=_CLEAN),
    _figure(
        "4.2", "Scores of true and false negatives", "4.3.1.1", measures.score_densities,
        Panel("score", "density", (Line("RNS", methods.BPR, _EPOCHS),)), seeds=1,
    ),
    _figure(
        "4.4", "Sampling quality", "4.5.2.2", "epochs",
        *(Panel("epoch", metric, _SAMPLERS) for metric in ("train/tnr", "train/inf")),
        common={"quality": True, "truth": "test"}, blind={"truth": "validation"},
    ),
    _figure(
        "4.5", "λ and the candidates of BNS", "4.5.2.3", "values",
        Panel("λ", "ndcg_at_20", (Line("BNS", _PRINTED, _points("bns_lambda", (0.1, 1.0, 5.0, 10.0, 15.0))),)),
        Panel("|M_u|", "ndcg_at_20", (Line("BNS", _PRINTED, _points("candidates", (1, 3, 5, 10, 15))),)),
    ),
    _figure(
        "5.3", "M, N and τ+ of DPL", "5.6.2.2", "values",
        Panel("M", "ndcg_at_20", _dpl("positives", (0, 1, 3, 5, 10, 15))),
        Panel("N", "ndcg_at_20", _dpl("negatives", (1, 3, 5, 10, 15))),
        Panel("τ+", "ndcg_at_20", _dpl("tau", (0.0, 0.03, 0.06, 0.1, 0.2, 0.3))),
    ),
    _figure(
        "5.4", "Seconds of an epoch", "5.6.2.3", "seconds",
        Panel("dataset", "seconds an epoch",
              (Line("BPR", methods.BPR), Line("DPL", _DPL), Line("BNS, eCDF of the batch", _BATCH_BNS))),
    ),
)  # fmt: skip

_FORMULAS = tuple(
    Computation(f"thesis-fig{number}", title, f"thesis {source}, figure {number}", "recommender", compute)
    for number, title, source, compute in (
        ("2.3", "The density of an order statistic", "2.3.2", theory.order_statistic),
        ("3.2", "Prior of the scores", "(3.19)", theory.prior),
        ("3.3", "Posterior of the scores of true positives", "(3.22)", theory.posterior),
        ("4.3", "Scores of true and false negatives, in theory", "(4.7), (4.8)", theory.class_densities),
        ("6.1", "The biased loss and mutual information", "(6.7)", theory.density_ratio),
        ("6.4", "Class densities by α", "(6.14), (6.15)", theory.mixtures),
    )
)

_EVERY: tuple[Figure | Computation, ...] = (*_ALL, *_FORMULAS)

FIGURES: Mapping[str, Figure | Computation] = {figure.id: figure for figure in _EVERY}
"""By id, such as ``thesis-fig4.5``."""
