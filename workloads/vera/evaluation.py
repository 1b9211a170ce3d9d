"""Metrics of rankings and their confidence: order, calibration and abstention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.contract import Columns, Direction, Evaluation, State
from workloads.losses.evidential import succeeds, top
from workloads.metrics import calibration
from workloads.metrics.retrieval import first, mrr, ndcg, ranked_grades, where_ordered
from workloads.vera.confidence import Map, Ranked, confidence, fit_map
from workloads.vera.dataset import VeraData
from workloads.vera.params import Params

DIRECTIONS: Mapping[str, Direction] = {
    "quality": "max", "mrr*": "max", "ndcg_at_10*": "max", "success*": "max", "selective/score/coverage*": "max",
    "calib/*": "min", "selective/score/aurc*": "min", "selective/score/risk*": "min",
}  # fmt: skip
"""Better direction of each metric, with the ends of its interval."""

DEPTHS = (1, 2, 3, 5, 10, 20)
"""Candidate values of k."""

RATES = (0.3, 0.9)
"""Range for the base rate of Z^(k), so that neither success nor failure is too rare to learn from."""


@dataclass(frozen=True, eq=False)
class LabelledQueries:
    """Q queries with their judgements.

    ``queries``: their indices. ``grades`` (Q, C): grades of the candidates. ``all_grades`` (Q, J): grades of everything
    relevant, candidate or not. ``odds`` (Q, C): the true probability that each candidate is the answer, if known.
    """

    queries: NDArray[np.int64]
    grades: torch.Tensor
    all_grades: torch.Tensor
    odds: torch.Tensor | None = None

    @classmethod
    def of(cls, data: VeraData, queries: NDArray[np.int64]) -> LabelledQueries:
        """Look up the judgements of some queries."""
        block = data.block(queries)
        device = block.grades.device
        all_grades = torch.from_numpy(data.pool.all_grades[queries]).to(device)
        odds = data.odds(queries, block.grades.shape[1])
        return cls(queries, block.grades, all_grades, None if odds is None else torch.from_numpy(odds).to(device))

    def success(self, ranked: Ranked, k: int) -> torch.Tensor:
        """Z^(k), (Q,) float64."""
        return succeeds(self.grades > 0, top(ranked.scores, k)).double()


@dataclass(frozen=True, eq=False)
class Choice:
    """The settings chosen on validation: k, the maps of c^(k) and c^(1), and the threshold for abstaining."""

    k: int = 1
    map_k: Map = field(default_factory=Map)
    map_1: Map = field(default_factory=Map)
    threshold: float = 0.0

    def state_dict(self) -> State:
        """The settings as tensors and plain numbers."""
        return {"k": self.k, "threshold": self.threshold, "map_k": self.map_k.values, "map_1": self.map_1.values}

    @classmethod
    def from_state(cls, state: State, params: Params) -> Choice:
        """The inverse of :meth:`state_dict`. If the parameters fix k, theirs is used."""
        k = params.eval_k if isinstance(params.eval_k, int) else int(state["k"])
        map_k, map_1 = (
            Map(params.recalibration if len(side) else "none", side) for side in (state["map_k"], state["map_1"])
        )
        return cls(k, map_k, map_1, float(state["threshold"]))


def choose(labelled: LabelledQueries, ranked: Ranked, params: Params, k: int | None) -> Choice:
    """Choose the settings on these queries. ``k``: keep this k; None chooses one."""
    if k is None:
        rates = [float(labelled.success(ranked, depth).mean()) for depth in DEPTHS]
        inside = [depth for depth, rate in zip(DEPTHS, rates) if RATES[0] <= rate <= RATES[1]]
        middle = sum(RATES) / 2
        nearest = min(range(len(DEPTHS)), key=lambda at: abs(rates[at] - middle))
        k = inside[0] if inside else DEPTHS[nearest]
    map_k, map_1 = (fit_map(params.recalibration, ranked, at, params, labelled.success(ranked, at)) for at in (k, 1))
    mapped = confidence(ranked, k, params, map_k)
    threshold = calibration.threshold_at_risk(mapped, labelled.success(ranked, k), params.eval_risk)
    return Choice(k, map_k, map_1, threshold)


def evaluation(
    labelled: LabelledQueries, ranked: Ranked, params: Params, choice: Choice, source: torch.Generator, units: bool
) -> Evaluation:
    """Metrics under the note's names. Calibration metrics are of c^(k); those with ``_at_1`` of c^(1).

    ``_low`` and ``_high`` are the ends of a 95% interval: a bootstrap over queries, or for the ECE
    :func:`calibration.ece_interval`. ``quality`` is ``mrr - calib/brier``, the metric that epochs and trials are
    selected by. A ranker that never finds an answer has a quality of at most 0, however well calibrated it is.
    """
    ranked_by_score = ranked_grades(ranked.scores, labelled.grades)
    columns: dict[str, torch.Tensor] = {
        "mrr": where_ordered(mrr(ranked_by_score, labelled.all_grades), ranked.scores),
        "ndcg_at_10": where_ordered(ndcg(first(ranked_by_score, 10), labelled.all_grades), ranked.scores),
    }
    metrics: dict[str, float] = {}
    probability = success = torch.zeros(0)

    def record_interval(name: str, value: torch.Tensor, interval: tuple[float, float]) -> None:
        metrics.update({name: float(value), f"{name}_low": interval[0], f"{name}_high": interval[1]})

    def record_bootstrap(name: str, measure: calibration.Measure, values: torch.Tensor, success: torch.Tensor) -> None:
        value = measure(values, success)
        interval = calibration.bootstrap(measure, values, success, params.eval_resamples, source)
        record_interval(name, value, interval)

    for suffix, k, mapped in (("_at_1", 1, choice.map_1), ("", choice.k, choice.map_k)):
        probability = confidence(ranked, k, params, mapped)
        success = labelled.success(ranked, k)
        interval = calibration.ece_interval(probability, success, params.eval_bins, params.eval_resamples, source)
        record_interval(f"calib/ece{suffix}", calibration.ece(probability, success, params.eval_bins), interval)
        for name, measure in _measures(params).items():
            record_bootstrap(f"{name}{suffix}", measure, probability, success)
        columns[f"calib/nll{suffix}"] = calibration.nll(probability, success)
        columns[f"calib/brier{suffix}"] = calibration.brier(probability, success)
        columns[f"selective/score/aurc{suffix}"] = calibration.aurc_influences(probability, success)
        metrics[f"success{suffix}"] = float(success.mean())
        if labelled.odds is not None:
            true = labelled.odds.gather(1, top(ranked.scores, k)).sum(1)
            metrics[f"calib/truth_mae{suffix}"] = float((probability - true).abs().mean())
    columns["quality"] = columns["mrr"].double() - columns["calib/brier"]
    answered = probability >= choice.threshold
    record_bootstrap("mrr", _average, columns["mrr"].double(), success)
    record_bootstrap("ndcg_at_10", _average, columns["ndcg_at_10"].double(), success)
    record_bootstrap("selective/score/coverage", _average, answered.double(), success)
    record_bootstrap("selective/score/risk", _risk, answered.double(), success)
    metrics |= {
        "k": float(choice.k),
        "quality": metrics["mrr"] - metrics["calib/brier"],
        "no_positive": float((labelled.grades <= 0).all(1).double().mean()),
        "selective/score/threshold": choice.threshold,
    }
    columns |= {"confidence": probability, "success": success}
    if params.confidence == "evidence":
        columns["kappa"] = _evidence(ranked, choice.k)
        metrics["kappa"] = float(columns["kappa"].mean())
    rows = {name: column.cpu().numpy() for name, column in columns.items()}
    tables = {
        "reliability": _reliability(probability, success, params.eval_bins),
        "risk_coverage": _curve(probability, success),
    }
    return Evaluation(metrics, {"id": labelled.queries, **rows} if units else {}, tables)


def _average(values: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return values.mean(-1)


def _risk(answered: torch.Tensor, success: torch.Tensor) -> torch.Tensor:
    """The share of failures among the answered queries; 0 if none is answered."""
    return (answered * (1 - success)).sum(-1) / answered.sum(-1).clamp(min=1)


def _measures(params: Params) -> dict[str, calibration.Measure]:
    risk = params.eval_risk
    return {
        "calib/nll": _mean(calibration.nll),
        "calib/brier": _mean(calibration.brier),
        "selective/score/aurc": calibration.aurc,
        "selective/score/coverage_at_risk": partial(calibration.coverage_at_risk, risk=risk),
    }


def _mean(each: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> calibration.Measure:
    return lambda probability, success: each(probability, success).mean(-1)


def _evidence(ranked: Ranked, k: int) -> torch.Tensor:
    """κ = α + β (note 2), averaged over the first k candidates, (Q,)."""
    kappa = (ranked.evidence.alpha + ranked.evidence.beta).masked_fill(~ranked.listed, 0)
    columns = top(ranked.scores, k)
    count = ranked.listed.gather(1, columns).sum(1).clamp(min=1)
    return kappa.gather(1, columns).sum(1).double() / count


def _reliability(probability: torch.Tensor, success: torch.Tensor, bins: int) -> Columns:
    """The reliability diagram, one row per bin; ``calibrated`` is the diagonal."""
    mean, share, queries = (side.cpu().numpy() for side in calibration.reliability(probability, success, bins))
    return {"confidence": mean, "success": share, "calibrated": mean, "queries": queries.astype(np.int64)}


def _curve(probability: torch.Tensor, success: torch.Tensor) -> Columns:
    risk = calibration.selective_risk(probability, success)
    coverage = torch.arange(1, len(risk) + 1, dtype=torch.float64) / max(1, len(risk))
    threshold = probability.sort(descending=True).values
    return {
        name: side.cpu().numpy() for name, side in zip(("coverage", "risk", "confidence"), (coverage, risk, threshold))
    }
