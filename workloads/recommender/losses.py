"""The losses and samplers by name, and everything that depends on the name. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.conditional_params import Computed, ConditionalParams, Rules, rules_of
from workloads.loss_table import Loss, Row
from workloads.recommender.backbones import BACKBONES
from workloads.recommender.contrasts import CONTRASTS, contrast_error


@dataclass(frozen=True)
class RecommenderLoss(Loss):
    """A loss of :class:`~workloads.recommender.loss_calls.Scores`, one value a positive (B,).

    Attributes:
        draws: N and M, the negatives and the further positives (or users) that an interaction needs: names of
            parameters, None for one negative or no further positive; or computed from the parameters' values.
        in_batch: supports masked negatives, as needed for the user's own items in a batch (E-6.N).
        compiled: supported by the compiled loop of ``optimizer=sgd``.
        pointwise: computed from each pair of one positive and one negative separately.
        whole_batch: compares the samples of a batch with one another, so that a batch cannot be split.
        true_negatives: masks the negatives that their users like, by the planted truth.
    """

    draws: tuple[str | None, str | None] | Computed = (None, None)
    in_batch: bool = False
    compiled: bool = False
    pointwise: bool = False
    whole_batch: bool = False
    true_negatives: bool = False

    def counts(self, values: Mapping[str, Any]) -> tuple[int, int]:
        """N and M for these parameters."""
        if isinstance(self.draws, Computed):
            drawn: tuple[int, int] = self.draws(values)
            return drawn
        negatives, positives = self.draws
        return (values[negatives] or 1 if negatives else 1), (values[positives] or 0 if positives else 0)


def _sampled(count: int) -> Computed:
    """The default of ``negatives``: ``count``, or None if the batch's items are the negatives."""
    return Computed(str(count), lambda values: None if values.get("sampler") == "in_batch" else count)


# K - 1 further positives: the positive itself is the first (E-DCL).
_BEYOND_THE_FIRST = Computed(
    "negatives, positives - 1", lambda values: (values["negatives"] or 1, max(0, (values["positives"] or 0) - 1))
)

_TAU = {"tau": (0.0, 1 - 2**-24)}
_PAIR = ("positive", "negative")
_CONTRASTIVE = {"negatives": _sampled(64), "temperature": 1.0}
_DEBIASED = {**_CONTRASTIVE, "positives": 1, "tau": "density"}

LOSSES: dict[str, RecommenderLoss] = {
    "bpr": RecommenderLoss(
        "workloads.losses.pairwise:bpr_loss",
        "thesis (2.2), (3.4), (4.1); BPR of tables 3.3, 5.2, 6.3", _PAIR, compiled=True, pointwise=True
    ),
    "bce": RecommenderLoss(
        "workloads.losses.pairwise:bce_loss", "thesis table 4.4, BCE", _PAIR, compiled=True, pointwise=True
    ),
    "infonce": RecommenderLoss(
        "workloads.losses.contrastive:infonce_loss",
        "thesis (2.3); InfoNCE of tables 4.4, 5.2, 6.3", params=_CONTRASTIVE,
        draws=("negatives", None), in_batch=True,
    ),
    "decoupled": RecommenderLoss(
        "workloads.losses.contrastive:decoupled_loss", "thesis 2.2.4.3; Yeh et al., ECCV 2022", params=_CONTRASTIVE,
        draws=("negatives", None), in_batch=True,
    ),
    "dcl": RecommenderLoss(
        "workloads.recommender.loss_calls:hcl_loss",
        "thesis 5.6.1.4; DCL of tables 5.2, 6.3; Chuang et al., NeurIPS 2020",
        ("positive", "negatives", "positives"), _DEBIASED, _TAU, draws=_BEYOND_THE_FIRST, in_batch=True,
    ),
    "hcl": RecommenderLoss(
        "workloads.recommender.loss_calls:hcl_loss",
        "thesis (5.52), E-5.52; HCL of tables 5.2, 6.3; Robinson et al., ICLR 2021",
        ("positive", "negatives", "positives"), {**_DEBIASED, "beta": 0.5}, _TAU, draws=_BEYOND_THE_FIRST,
        in_batch=True,
    ),
    "dpl": RecommenderLoss(
        "workloads.losses.pairwise:dpl_loss",
        "thesis (5.17), algorithm 4; DPL of table 5.2", ("positive", "negatives", "extra"),
        {"negatives": _sampled(10), "positives": 10, "tau": "density"}, _TAU, draws=("negatives", "positives"),
    ),
    "supervised": RecommenderLoss(
        "workloads.losses.pairwise:supervised_loss", "thesis (5.27), L_SUP",
        params={"negatives": _sampled(10), "truth": "planted"}, draws=("negatives", None), in_batch=True,
        true_negatives=True,
    ),
    "bcl": RecommenderLoss(
        "workloads.losses.contrastive:bcl_loss", "thesis (6.31), algorithm 5; BCL of table 6.3",
        params={**_CONTRASTIVE, "tau": "density", "alpha": "auc", "beta": 0.7, "ties": "le"},
        bounds={**_TAU, "alpha": (0.5, 1.0), "beta": (0.0, 1.0)}, draws=("negatives", None), in_batch=True,
    ),
    "gbpr": RecommenderLoss(
        "workloads.losses.pairwise:gbpr_loss", "thesis table 3.3, GBPR; Pan and Chen, IJCAI 2013",
        ("positive", "positives", "negative"), {"group": 3, "rho": 0.4},
        draws=Computed("1, group - 1", lambda values: (1, values["group"] - 1)),  # the user is one of the group
        compiled=True,
    ),
    "mpr": RecommenderLoss(
        "workloads.recommender.loss_calls:mpr_loss", "thesis table 3.3, MPR; Yu et al., CIKM 2018",
        ("positive", "extra", "negatives"), {"lam": 0.5}, draws=Computed("2, 2", lambda _: (2, 2)), compiled=True,
    ),
    "denoise_truncated": RecommenderLoss(
        "workloads.recommender.loss_calls:truncated_loss", "thesis table 3.3, DenoiseRec; Wang et al., WSDM 2021",
        (*_PAIR, "step"), {"drop_rate": 0.2, "drop_steps": 30_000}, whole_batch=True,
    ),
    "denoise_reweighted": RecommenderLoss(
        "workloads.losses.pairwise:reweighted_bce_loss",
        "thesis table 3.3, DenoiseRec reweighted; Wang et al., WSDM 2021",
        _PAIR, {"beta": 0.2}, compiled=True, pointwise=True,
    ),
    "denoise_truncated_bpr": RecommenderLoss(
        "workloads.losses.pairwise:truncated_bpr_loss",
        "thesis 3.5.1: a loss above the threshold is 0", _PAIR, {"threshold": 2.0},
        compiled=True, pointwise=True,
    ),
    "bprac": RecommenderLoss(  # BPR weighted by credence, which takes the parameters
        "workloads.losses.pairwise:bpr_loss", "thesis (3.27), (3.29); tables 3.2, 3.3", _PAIR,
        {"credence": "mean1", "prior_var": 0.6, "e_steps": "epoch"}, {"prior_var": (1e-6, 100.0)}, compiled=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SamplerRow(Row):
    """A sampler.

    Attributes:
        function: ``module:name`` of the function that builds it, of parameters, data and the data root.
        compiled: supported by the compiled loop of ``optimizer=sgd``.
    """

    compiled: bool = False


_BUILDERS = "workloads.recommender.samplers"
_LAMBDA = {"bns_lambda": (0.0, 1e6)}
_BNS = {"candidates": 5, "bns_lambda": 5.0, "bns_prior": "popularity"}

SAMPLERS: dict[str, SamplerRow] = {
    "uniform": SamplerRow(f"{_BUILDERS}:uniform", "RNS of thesis table 4.2", compiled=True),
    "in_batch": SamplerRow(f"{_BUILDERS}:in_batch", "thesis 5.6.2.3, E-6.N", {"logq": False}),
    "popularity": SamplerRow(f"{_BUILDERS}:popularity", "PNS of thesis table 4.2", compiled=True),
    "aobpr": SamplerRow(
        f"{_BUILDERS}:aobpr", "Rendle and Freudenthaler, WSDM 2014", {"aobpr_lambda": 100.0}, compiled=True
    ),
    "dns": SamplerRow(f"{_BUILDERS}:dns", "Zhang et al., SIGIR 2013; E-4.D", {"candidates": 5}, compiled=True),
    "srns": SamplerRow(
        f"{_BUILDERS}:srns", "Ding et al., NeurIPS 2020; E-4.D",
        {"candidates": 64, "srns_memory": 8, "srns_alpha": 5.0, "srns_warmup": 50, "srns_temperature": 10.0},
    ),
    "bns": SamplerRow(
        f"{_BUILDERS}:bns", "thesis (4.30), algorithm 2", {**_BNS, "bns_uniform_epochs": 0, "ecdf": "exact"}, _LAMBDA,
        compiled=True,
    ),
    "bns_posterior": SamplerRow(
        f"{_BUILDERS}:bns", "thesis (4.29)", {"candidates": 5, "bns_prior": "popularity", "ecdf": "exact"},
        compiled=True,
    ),
    "bns_oracle": SamplerRow(
        f"{_BUILDERS}:bns", "thesis table 4.5",
        {**_BNS, "bns_prior": "label", "truth": "planted", "ecdf": "exact"}, _LAMBDA, compiled=True,
    ),
}  # fmt: skip

_SWITCHES: Rules = {
    ("ecdf", "sampled"): {"ecdf_items": 128},
    ("quality", True): {"truth": "validation"},
    ("optimizer", "sgd"): {"threads": 1},
    ("bns_prior", "file"): {"prior_file": None},
}

PLANTED = "synthetic"
"""The dataset with known true preferences."""


TABLES: Mapping[str, Mapping[str, Any]] = {
    "backbone": BACKBONES, "loss": LOSSES, "sampler": SAMPLERS, "contrast": CONTRASTS,
}  # fmt: skip
"""The tables by the parameter that names a row."""

CONDITIONAL = ConditionalParams(lambda: {**rules_of(TABLES), **_SWITCHES}, {"backbone": "mf"})


def combination_error(values: Mapping[str, Any]) -> str | None:
    """A message about parameters that cannot be combined, or None."""
    if values["sampler"] == "in_batch" and values["negatives"] is not None:
        return (
            f"negatives={values['negatives']} has no effect with sampler=in_batch, which takes the items of the batch. "
            "Drop negatives, or set another sampler"
        )
    return _unmasked(values) or _uncorrected(values) or _unknown_truth(values) or contrast_error(values)


def not_compiled(values: Mapping[str, Any]) -> str | None:
    """The first parameter value that the compiled loop does not support, as ``name=value``, or None."""
    compiled: dict[str, set[str | None]] = {
        "backbone": {"mf"},
        "loss": {name for name, row in LOSSES.items() if row.compiled},
        "sampler": {name for name, row in SAMPLERS.items() if row.compiled},
        "ecdf": {None, "exact"},
    }
    return next((f"{name}={values[name]}" for name, has in compiled.items() if values[name] not in has), None)


def _unmasked(values: Mapping[str, Any]) -> str | None:
    """A message about a loss that cannot use the batch's items as negatives, or None."""
    if values["sampler"] != "in_batch" or LOSSES[values["loss"]].in_batch:
        return None
    masking = " or ".join(name for name, row in LOSSES.items() if row.in_batch)
    return (
        f"sampler=in_batch does not go with loss={values['loss']}, which cannot leave out the items that a user has. "
        f"Set loss={masking}, or another sampler"
    )


_CORRECTED = ("infonce", "decoupled")
"""Losses that are a softmax over the batch's items, whose sampling ``logq`` corrects."""


def _uncorrected(values: Mapping[str, Any]) -> str | None:
    """A message about a loss that has no correction of its sampling by logQ, or None."""
    if not values["logq"] or values["loss"] in _CORRECTED:
        return None
    return (
        f"logq=true corrects the softmax of loss={' or '.join(_CORRECTED)}, not loss={values['loss']}. Drop logq, or "
        "set one of these"
    )


def _unknown_truth(values: Mapping[str, Any]) -> str | None:
    """A message about a truth that is not available when needed, or None."""
    if values["bns_prior"] == "file" and values["prior_file"] is None:
        return "bns_prior=file takes its probabilities from a Parquet file. Set prior_file to its absolute path"
    if values["bns_prior"] == "label" and values["sampler"] != "bns_oracle":
        return (
            f"bns_prior=label is for sampler=bns_oracle, which knows labels; got sampler={values['sampler']}. "
            "Set bns_prior=popularity"
        )
    supervised = values["loss"] is not None and LOSSES[values["loss"]].true_negatives
    if supervised and (values["dataset"], values["truth"]) != (PLANTED, "planted"):
        return (
            f"loss={values['loss']} takes true negatives, known for dataset={PLANTED} truth=planted alone; got "
            f"dataset={values['dataset']} truth={values['truth']}. Set both, or another loss"
        )
    oracle = values["sampler"] == "bns_oracle"
    seen = "truth=test, which training then has seen"
    if oracle and values["truth"] == "validation":
        return (
            "sampler=bns_oracle cannot use truth=validation, since a refit trains on it. "
            f"Set {seen}, or truth=planted with dataset={PLANTED}"
        )
    if values["truth"] == "planted" and values["dataset"] != PLANTED:
        return (
            f"truth=planted exists for dataset={PLANTED} alone, not for dataset={values['dataset']}. "
            f"Set {seen if oracle else 'truth=validation or truth=test'}"
        )
    return None
