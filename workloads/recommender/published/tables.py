"""The published tables, by their ids: where they stand, how their rows are run, what is doubted about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workloads.recommender.published import methods
from workloads.recommender.published.rows import Doubt, Table

_RANDOM: Mapping[str, Mapping[str, Any]] = {"yahoo-r3": {"split": "random"}}
"""Chapters 4 to 6 hold out 20% of all interactions, E-4.S: the split that comes with the other datasets."""

_CLEAN: Mapping[str, Any] = {"split": "clean"}
"""Section 3.5.1: half of the five-star interactions are the test part, E-3.D."""

_PRIORS: Mapping[str, Mapping[str, Any]] = {
    f"yahoo-r3 {name}": {"prior_var": 0.2} for name in ("BPRAC", "BPRAC, mean1", "BPRAC, bayes", "BPRAC, SGD")
}

_FORMS: Mapping[str, str | None] = {"BPRAC, mean1": None, "BPRAC, bayes": None, "BPRAC, SGD": "BPRAC"}
"""The other forms of the credence (E-3.27), and the published rates to the letter."""

_SCRAMBLED = "row labels are scrambled in the source; the values stand by the order of the blocks"
_LABELS = (
    Doubt("E-4.T", _SCRAMBLED, datasets=("ml-100k",), backbones=("lightgcn",)),
    Doubt("E-4.T", _SCRAMBLED, datasets=("ml-1m", "yahoo-r3", "yelp2018", "gowalla")),
)
_BUDGET = Doubt(
    "budget",
    "the author's BPR trained 100 epochs at another learning rate than DPL's 200",
    datasets=("ml-100k",), backbones=("mf",), methods=("BPR", "RNS"),
)  # fmt: skip
_NEARLY_DNS = Doubt("E-4.16", "with this prior and λ = 5 BNS is nearly DNS", methods=("BNS",))
_HCL = Doubt("E-5.52", "weights as printed are undefined for negative scores; e^{score/t} instead", methods=("HCL",))
_YAHOO_BPR = Doubt(
    "E-4.T",
    "tables 4.2 and 5.2 print different values for this row (precision_at_5 .1196 and .1417)",
    datasets=("yahoo-r3",), backbones=("mf",), methods=("BPR", "RNS"),
)  # fmt: skip
_IMPOSSIBLE = "impossible between the row's NDCG at 5 and at 20; about .41 is meant"
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
_FILTER = Doubt("E-3.D", "which ratings of Yahoo!-R3 the test part takes is contradictory", datasets=("yahoo-r3",))
_MPR_FORM = Doubt("MPR", "the thesis gives the order relation only; the paper's form from memory", methods=("MPR",))


def _of(extra: Iterable[str]) -> dict[str, str | None]:
    """``RNS, SGD`` is compared with RNS."""
    return {name: name.rpartition(", ")[0] for name in extra}


_ALL = (
    Table(
        "thesis-3.2", "AUC of the credence against ratings of 1", "thesis 3.5.2, table 3.2", methods.DENOISING,
        _CLEAN, _PRIORS, extra=_FORMS, doubts=(_RATINGS, _DENSITY, _FILTER),
        compared_by="credence_auc", measure="credence",
    ),
    Table(
        "thesis-3.3", "Pairwise ranking from noisy positives", "thesis 3.5.2, table 3.3", methods.DENOISING,
        _CLEAN, _PRIORS, extra={"DenoiseRec, reweighted": None, **_FORMS},
        doubts=(_RATINGS, _DENSITY, _FILTER, _MPR_FORM, _MAP), compared_by="ndcg_at_10",
    ),
    Table(
        "thesis-4.2", "Negative samplers", "thesis 4.5.2.1, table 4.2", {**methods.SAMPLING, **methods.SAMPLING_SGD},
        on=_RANDOM, extra=_of(methods.SAMPLING_SGD),
        doubts=(*_LABELS, _YAHOO_BPR, _NEARLY_DNS, _BUDGET),
    ),
    Table(
        "thesis-4.3", "Variants of BNS", "thesis 4.5.2.3, table 4.3", {**methods.VARIANTS, **methods.VARIANTS_SGD},
        extra=_of(methods.VARIANTS_SGD),
        doubts=(_NEARLY_DNS, _BUDGET, Doubt("E-4.30", "is DNS but for the very top", methods=("BNS-3",))),
    ),
    Table(
        "thesis-4.4", "BNS with other losses", "thesis 4.5.2.4, table 4.4", methods.OTHER_LOSSES,
        doubts=(Doubt("E-4.16", "with this prior and λ = 5 BNS is nearly DNS",
                      methods=("BPR, BNS", "BCE, BNS", "InfoNCE, BNS")),),
    ),
    Table(
        "thesis-4.5", "Towards the optimal sampler: a prior that knows the test part", "thesis 4.5.2.5, table 4.5",
        methods.ORACLE, reads_test=True,
    ),
    Table(
        "thesis-5.2", "DPL beside other losses", "thesis 5.6.2.1, table 5.2", methods.CONTRASTIVE, on=_RANDOM,
        doubts=(
            *_LABELS, _YAHOO_BPR, _BUDGET, _HCL,
            Doubt("E-5.T", _IMPOSSIBLE, ("ml-1m",), ("lightgcn",), ("DPL",), ("ndcg_at_10",)),
            Doubt("E-5.T", "suspect beside the best recall of the block", ("yahoo-r3",), ("lightgcn",), ("HCL",),
                  ("precision_at_5", "recall_at_5")),
        ),
    ),
    Table(
        "thesis-5.3", "DPL beside negative sampling", "thesis 5.6.2.3, table 5.3", methods.HARD,
        on={"ml-1m DPL with hard samples": {"tau": 0.25}}, doubts=(_NEARLY_DNS, _BUDGET),
    ),
    Table(
        "thesis-6.3", "BCL beside other contrastive losses", "thesis 6.6.3.1, table 6.3", methods.CONTRASTIVE,
        on=_RANDOM,
        doubts=(
            *_LABELS, _HCL,
            Doubt("E-5.T", _IMPOSSIBLE, ("ml-1m",), ("lightgcn",), ("BCL",), ("ndcg_at_10",)),
        ),
    ),
)  # fmt: skip

TABLES: Mapping[str, Table] = {table.id: table for table in _ALL}
"""By id, such as ``thesis-4.2``."""
