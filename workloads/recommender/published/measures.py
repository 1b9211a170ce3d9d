"""Measures of tables and figures other than test metrics: quality of the credence, densities of scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean, stdev

from workloads.published import Curve, Trained


def credence_auc(run: Trained) -> Mapping[str, float]:
    """Table 3.2."""
    from workloads.recommender.published.trust import evaluate_credence

    return {"credence_auc": evaluate_credence(run.model, run.params, run.data).auc}


PLANTED = ("truth_auc", "truth_ndcg_at_20")


def by_planted_truth(run: Trained) -> Mapping[str, float]:
    """AUC and NDCG@20 against the planted truth: all items that a user likes and has not been trained on.

    The test part is a sample of them that the generator has drawn by popularity. Raises ValueError without a truth.
    """
    from workloads.recommender.published.scores import against_planted_truth

    values = against_planted_truth(run.model, run.params, run.data)
    return {name: values[name.removeprefix("truth_")] for name in PLANTED}


def credence_roc(runs: Sequence[Trained]) -> Iterator[Curve]:
    """Figure 3.4: the ROC of the first seed, and the AUC of all."""
    from workloads.recommender.published.trust import evaluate_credence

    evaluations = [evaluate_credence(run.model, run.params, run.data) for run in runs]
    areas = [evaluation.auc for evaluation in evaluations]
    note = f"AUC {fmean(areas):.4f}" + (f" ± {stdev(areas):.4f}" if len(areas) > 1 else "")
    first = evaluations[0]
    yield Curve(first.false_positives.tolist(), first.true_positives.tolist(), note=note)


def score_densities(runs: Sequence[Trained]) -> Iterator[Curve]:
    """Figure 4.2: densities of the first run's model."""
    from workloads.recommender.published.scores import model_densities

    first = runs[0]
    panel = f"after {first.epochs} epoch{'s' * (first.epochs > 1)}"
    densities = model_densities(first.model, first.params, first.data)
    for name, density in (("true negatives", densities.true), ("false negatives", densities.false)):
        mass = float(density.sum())
        mean = float((densities.x * density).sum()) / mass if mass else nan
        yield Curve(densities.x.tolist(), density.tolist(), name=name, panel=panel, x_label="score", y_label="density",
                    note=f"mean {mean:.3f}")  # fmt: skip
