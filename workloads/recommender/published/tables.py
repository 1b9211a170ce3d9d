"""The published tables by id: their source, how their rows are run, and doubts about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workloads.published import Doubt, Further, Measure, Method, Table
from workloads.recommender.published import measures, methods
from workloads.recommender.published.methods import BY, THESIS

_RANDOM: Mapping[str, Mapping[str, Any]] = {"yahoo-r3": {"split": "random"}}
"""Chapters 4 to 6 hold out 20% of all interactions, E-4.S: the split that comes with the other datasets."""

_CLEAN: Mapping[str, Any] = {"split": "clean"}
"""Section 3.5.1: half of the five-star interactions are the test part, E-3.D."""

_PRIORS: Mapping[str, Mapping[str, Any]] = {
    f"yahoo-r3 {name}": {"prior_var": 0.2} for name in methods.DENOISING if name.startswith("BPRAC")
}

_FORMS: Mapping[str, str | None] = {
    "BPRAC, mean1": None, "BPRAC, bayes": None, "BPRAC, prior alone": None, "BPRAC, SGD": "BPRAC",
}  # fmt: skip
"""Rows that the tables do not have: other forms of the credence (E-3.27), the prior alone, and the published rates."""

_SCRAMBLED = "row labels are scrambled in the source; the values stand by the order of the blocks"
_LABELS = (
    Doubt("E-4.T", _SCRAMBLED, {"dataset": ("ml-100k",), "backbone": ("lightgcn",)}),
    Doubt("E-4.T", _SCRAMBLED, {"dataset": ("ml-1m", "yahoo-r3", "yelp2018", "gowalla")}),
)
_BUDGET = Doubt(
    "budget",
    "the author's BPR trained 100 epochs at another learning rate than DPL's 200",
    {"dataset": ("ml-100k",), "backbone": ("mf",)}, methods=("BPR", "RNS"),
)  # fmt: skip
_NEARLY_DNS = Doubt("E-4.16", "with this prior and λ = 5 BNS is nearly DNS", methods=("BNS",))
_HCL = Doubt("E-5.52", "weights as printed are undefined for negative scores; e^{score/t} instead", methods=("HCL",))
_YAHOO_BPR = Doubt(
    "E-4.T",
    "tables 4.2 and 5.2 print different values for this row (precision_at_5 .1196 and .1417)",
    {"dataset": ("yahoo-r3",), "backbone": ("mf",)}, methods=("BPR", "RNS"),
)  # fmt: skip
_IMPOSSIBLE = "impossible between the row's NDCG at 5 and at 20; about .41 is meant"
_ML_1M_LIGHTGCN: Mapping[str, tuple[str, ...]] = {"dataset": ("ml-1m",), "backbone": ("lightgcn",)}
_MAP = Doubt(
    "E-4.M",
    "MAP divides by the hits and interpolates, not by min(k, relevant)",
    metrics=("map_interp_at_5", "map_interp_at_10"),
)
_RATINGS = Doubt(
    "E-3.28",
    "the author's code weights by the explicit rating, which the text rules out; the popularity prior alone is ours",
    methods=("BPRAC",),
)
_DENSITY = Doubt("E-3.27", "the credence is a density times a prior, and not monotone in the score", methods=("BPRAC",))
_FILTER = Doubt("E-3.D", "which ratings of Yahoo!-R3 the test part takes is contradictory", {"dataset": ("yahoo-r3",)})
_MPR_FORM = Doubt("E-3.M", "an order of items is given and no loss; the paper's form from memory", methods=("MPR",))


def _of(extra: Iterable[str]) -> dict[str, str | None]:
    """``RNS, SGD`` is compared with RNS."""
    return {name: name.rpartition(", ")[0] for name in extra}


def _table(
    number: str,
    title: str,
    source: str,
    rows: Mapping[str, Method],
    *doubts: Doubt,
    common: Mapping[str, Any] | None = None,
    on: Mapping[str, Mapping[str, Any]] | None = None,
    extra: Mapping[str, str | None] | None = None,
    compared_by: str = "ndcg_at_20",
    measure: Measure | None = None,
    reads_test: bool = False,
    proposed: str | None = None,
    named: tuple[tuple[str, str], ...] = (),
    baseline: str | None = None,
) -> Table:
    """``proposed``: the source's own method, which it compares with each of the others. ``baseline``: the row of BPR;
    the table then also has the oracle and metrics by the truth, where that is known, and the share of their gap."""
    if baseline is not None:
        rows = {**rows, **methods.SUPERVISED}
        extra = {**(extra or {}), **dict.fromkeys(methods.SUPERVISED)}
    if proposed is not None:
        named = tuple((proposed, name) for name in rows if name != proposed and name not in (extra or {}))
    return Table(
        f"thesis-{number}", title, f"thesis {source}, table {number}", THESIS, rows, compared_by, BY,
        Path(__file__).with_name(f"table-{number}.csv"), common=common or {}, on=on or {}, extra=extra or {},
        doubts=doubts, measure=measure, reads_test=reads_test, named=named,
        gap=None if baseline is None else (baseline, "L_SUP"),
        further={} if baseline is None else {"synthetic": Further(measures.PLANTED, measures.by_planted_truth)},
    )  # fmt: skip


_ALL = (
    _table(
        "3.2", "AUC of the credence against ratings of 1", "3.5.2", methods.DENOISING, _RATINGS, _DENSITY, _FILTER,
        common=_CLEAN, on=_PRIORS, extra=_FORMS, compared_by="credence_auc", measure=measures.credence_auc,
        proposed="BPRAC",
    ),
    _table(
        "3.3", "Pairwise ranking from noisy positives", "3.5.2", methods.DENOISING,
        _RATINGS, _DENSITY, _FILTER, _MPR_FORM, _MAP,
        common=_CLEAN, on=_PRIORS, extra={"DenoiseRec, reweighted": None, "DenoiseRec, pairwise": None, **_FORMS},
        compared_by="ndcg_at_10", proposed="BPRAC",
    ),
    _table(
        "4.2", "Negative samplers", "4.5.2.1", {**methods.SAMPLING, **methods.SAMPLING_SGD},
        *_LABELS, _YAHOO_BPR, _NEARLY_DNS, _BUDGET, on=_RANDOM, extra=_of(methods.SAMPLING_SGD),
        proposed="BNS", baseline="RNS",
    ),
    _table(
        "4.3", "Variants of BNS", "4.5.2.3", {**methods.VARIANTS, **methods.VARIANTS_SGD},
        _NEARLY_DNS, _BUDGET, Doubt("E-4.30", "is DNS but for the very top", methods=("BNS-3",)),
        extra=_of(methods.VARIANTS_SGD), proposed="BNS", baseline="RNS",
    ),
    _table(
        "4.4", "BNS with other losses", "4.5.2.4", methods.OTHER_LOSSES,
        Doubt(_NEARLY_DNS.tag, _NEARLY_DNS.why, methods=("BPR, BNS", "BCE, BNS", "InfoNCE, BNS")),
        named=tuple((f"{loss}, BNS", f"{loss}, RNS") for loss in ("BPR", "BCE", "InfoNCE")),
        baseline="BPR, RNS",
    ),
    _table(
        "4.5", "Towards the optimal sampler: a prior that knows the test part", "4.5.2.5",
        {**methods.ORACLE, **methods.ORACLE_UNINFORMED},
        Doubt("4.5.2.5", "at .04 the best scored true negatives are avoided too; 1/I comes near the printed level"),
        extra=_of(methods.ORACLE_UNINFORMED), reads_test=True,
    ),
    _table(
        "5.2", "DPL compared with other losses", "5.6.2.1", {**methods.CONTRASTIVE, **methods.AS_CODED},
        *_LABELS, _YAHOO_BPR, _BUDGET, _HCL, Doubt("E-5.T", _IMPOSSIBLE, _ML_1M_LIGHTGCN, ("DPL",), ("ndcg_at_10",)),
        Doubt("E-5.T", "suspect, given the best recall of the block",
              {"dataset": ("yahoo-r3",), "backbone": ("lightgcn",)}, ("HCL",), ("precision_at_5", "recall_at_5")),
        on=_RANDOM, extra=_of(methods.AS_CODED), proposed="DPL", baseline="BPR",
    ),
    _table(
        "5.3", "DPL compared with negative sampling", "5.6.2.3", methods.HARD, _NEARLY_DNS, _BUDGET,
        on={"ml-1m DPL with hard samples": {"tau": 0.25}}, proposed="DPL with hard samples", baseline="BPR",
    ),
    _table(
        "6.3", "BCL compared with other contrastive losses", "6.6.3.1", methods.CONTRASTIVE,
        *_LABELS, _HCL, Doubt("E-5.T", _IMPOSSIBLE, _ML_1M_LIGHTGCN, ("BCL",), ("ndcg_at_10",)), on=_RANDOM,
        proposed="BCL", baseline="BPR",
    ),
)  # fmt: skip

TABLES: Mapping[str, Table] = {table.id: table for table in _ALL}
"""By id, such as ``thesis-4.2``."""
