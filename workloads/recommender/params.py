"""Hyperparameters of the recommender. Imports no PyTorch, so that the command line starts quickly.

The source document is Liu Bin's dissertation on contrastive learning for recommendation ("thesis"). A parameter that
only some losses or samplers use is None with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from workloads.common_params import AbsoluteFile, WorkloadParams
from workloads.conditional_params import OneOf, out_of_bounds_error
from workloads.contract import MID_RUN, Preset
from workloads.data.datasets import check_kind
from workloads.recommender import data_checks
from workloads.recommender.backbones import BACKBONES, LEARNT
from workloads.recommender.contrasts import CONTRASTS
from workloads.recommender.cutoffs import CUTOFFS, Cutoffs, check_objectives
from workloads.recommender.losses import CONDITIONAL, LOSSES, SAMPLERS, TABLES, combination_error, not_compiled
from workloads.recommender.presets import PRESETS

Backbone: TypeAlias = Annotated[str, OneOf(BACKBONES)]
Loss: TypeAlias = Annotated[str, OneOf(LOSSES)]
Sampler: TypeAlias = Annotated[str, OneOf(SAMPLERS)]
Contrast: TypeAlias = Annotated[str, OneOf(CONTRASTS)]

UNUSED: Any = None
"""Default of a parameter that some backbones do not use, whose type is that with the others."""

LARGEST_BLOCK = 2**15
"""Users that are scored with as many items at once, by ``sampler=in_batch``: 4 GiB of float32, several times
(:data:`~workloads.recommender.data_checks.BLOCKS`)."""


class Params(WorkloadParams):
    """Parameters of the recommender.

    The default ``weight_decay`` is that of the thesis' text. On MovieLens-100K it is about that of the author's code,
    whose largest ``lr`` is half the default: on the validation part both backbones do well there, neither best.
    """

    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    tables: ClassVar[Mapping[str, Mapping[str, Any]]] = TABLES
    conditional = CONDITIONAL

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, "interactions"))] = Field(
        "synthetic", min_length=1, description="Interactions to learn from; `data list` has the names."
    )
    dataset_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Random interactions injected into train, as a share of it (thesis 3.5.3, figure 3.5).",
    )
    dataset_min_rating: float | None = Field(
        None, ge=-1e9, le=1e9, description="Lowest rating of a positive, such as 4; interactions below it are left out "
        "of train and test, before the split. Unset: all are positives.",
    )  # fmt: skip
    split: Literal["official", "random", "clean", "leave_last_out", "global_time"] = Field(
        "official",
        description="Test part: the source's own (random where it has none), 20% of all interactions, half of those of "
        "highest rating (thesis 3.5.1, E-3.D), each user's last, or the latest 20% of all; the last two need times.",
    )
    backbone: Backbone = Field(
        "mf",
        description="mf and lightgcn are trained on sampled negatives; the others are baselines, fitted in the "
        "first epoch, so that epochs=1 suffices (ials: in all epochs), and use neither loss, sampler nor optimizer; "
        "all are listed with their sources.",
    )
    loss: Loss = Field(
        UNUSED,
        description="Of a positive and what it draws, N negatives and M positives; one of the losses listed with their "
        "sources.",
    )
    sampler: Sampler = Field(
        UNUSED,
        description="Of negatives (thesis 4.5.1.2); one of the samplers listed with their sources.",
    )
    contrast: Contrast | None = Field(
        None,
        description="Graph contrastive learning, an InfoNCE term on LightGCN that is added to any loss; one of the "
        "methods listed with their sources, or none.",
    )
    dim: int = Field(UNUSED, ge=1, le=4096, description="Dimension d of the embeddings (32: thesis 4.5.1.2).")
    layers: int = Field(
        1, ge=1, le=8, description="Propagations of LightGCN (1: thesis 4.5.1.2); matrix factorisation has none."
    )
    optimizer: Literal["adam", "sgd", "sgd_batched"] = Field(
        UNUSED,
        description="adam: in batches. sgd: one triple after the other, compiled, for matrix factorisation on a CPU "
        "(thesis algorithms 1 and 2). sgd_batched: its steps added up over a batch, on any device.",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="Threads of sgd; only one is reproducible to the bit.")
    lr: float = Field(
        UNUSED,
        gt=0,
        le=1,
        description="Learning rate (thesis 4.5.1.2: 0.01, for matrix factorisation with sgd and for LightGCN).",
        json_schema_extra=MID_RUN,
    )
    lr_decay: float = Field(
        UNUSED,
        gt=0,
        le=1,
        description="Factor on lr every lr_decay_every epochs; 1 is constant (thesis 4.5.1.2: 0.1 for LightGCN).",
    )
    lr_decay_every: int = Field(
        UNUSED, ge=1, description="Epochs between two decays of lr (20: thesis 4.5.1.2, LightGCN)."
    )
    weight_decay: Annotated[float, Field(ge=0, le=1)] | Literal["users"] = Field(
        UNUSED,
        description="Coupled L2 on the whole table, as in the source's code (1e-5: thesis 4.5.1.2, LightGCN); sgd's "
        "regularisation of the rows of a triple (0.01: thesis 4.5.1.2). users: 0.01 / users, with sgd and sgd_batched "
        "0.01 (E-4.W).",
        json_schema_extra=MID_RUN,
    )
    batch_size: int = Field(
        UNUSED,
        ge=1,
        le=2**24,
        description="Interactions in a global batch, over all workers (thesis 4.5.1.2: 1, 128 and 1024).",
    )
    split_seed: int = Field(
        0,
        ge=0,
        description="Seed of the validation split: of each user's training interactions 10%, rounded, and at least one "
        "of two or more. Splits by time have none.",
    )
    eval_users: int | None = Field(
        None,
        ge=1,
        description="Users that are ranked on validation, drawn with split_seed, to make a selection cheaper; test "
        "ranks all. None: all.",
    )
    cutoffs: Cutoffs = Field(
        CUTOFFS,
        description="k of every metric at k, such as 10,50,100: at most 16, to 1,000; with fewer candidates than k a "
        "list has them all.",
    )

    knn_items: int | None = Field(
        None, ge=1, le=2**16, description="k of item_knn, most similar items of each item (Dacrema et al.: 5 to 1,000)."
    )
    knn_shrink: float | None = Field(
        None,
        ge=0,
        le=1e9,
        description="Added to the product of norms in item_knn's cosine (Dacrema et al., RecSys 2019: 0 to 1,000).",
    )
    ease_lambda: float | None = Field(
        None, gt=0, le=1e9, description="λ of ease, on the squared weights (its paper: 200 to 1,000)."
    )
    ials_alpha: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="α of ials: a training interaction weighs 1 + α, another pair 1 (its paper: 40).",
    )
    ials_confidence: Literal["equal", "rating"] | None = Field(
        None, description="rating: an interaction of rating, or count, r weighs 1 + α r in ials (its paper)."
    )
    ials_lambda: float | None = Field(None, gt=0, le=1e9, description="λ of ials, on the squared embeddings.")

    negatives: int | None = Field(
        None,
        ge=1,
        le=2**16,
        description="N, negatives of a positive (thesis table 4.4: 2; figure 5.3: 1 to 15; bcl: what fits, E-6.B).",
    )
    positives: int | None = Field(
        None,
        ge=0,
        le=2**16,
        description="M, positives that correct the bias; 0: none. For dpl besides the positive (figure 5.3: 0 to 15), "
        "for dcl and hcl the positive is the first of them (K of 5.6.1.4).",
    )
    tau: float | Literal["density"] | None = Field(
        None,
        description="τ+ in [0, 1), share of positives among the unlabelled; density: that of the training "
        "interactions (thesis 5.6.2.2; table 5.3: 0.3 and 0.25 with hard samples).",
    )
    temperature: float | None = Field(None, ge=1e-3, le=1e4, description="t, which divides every score (E-2.2: 1).")
    alpha: float | Literal["auc", "auc_literal"] | None = Field(
        None,
        description="α of bcl in [.5, 1], how well scores separate the classes; auc: the one that gives the validation "
        "AUC before each epoch; auc_literal: that AUC itself, as the text calls it (E-6.21).",
    )
    ties: Literal["le", "mid"] | None = Field(
        None,
        description="Place of equal scores in bcl's empirical distribution: le, their last, as it is defined; mid, the "
        "middle of theirs (E-6.30).",
    )
    beta: float | None = Field(
        None,
        ge=0,
        le=100,
        description="β: hardness of negatives, for hcl from 0 (5.52), for bcl in [0, 1], .5 only corrects the bias "
        "(6.25, E-6.B); exponent of denoise_reweighted's weights.",
    )
    group: int | None = Field(
        None, ge=1, le=1024, description="|G| of gbpr, users who share the item, including the user (3)."
    )
    rho: float | None = Field(None, ge=0, le=1, description="ρ of gbpr, weight of the group (paper: .2 to 1).")
    lam: float | None = Field(None, ge=0, le=1, description="λ of mpr, weight of its first order relation.")
    drop_rate: float | None = Field(
        None, ge=0, lt=1, description="Largest share of samples that denoise_truncated drops (paper: .05 to .3)."
    )
    drop_steps: int | None = Field(
        None, ge=1, description="Steps over which denoise_truncated's drop rate rises (paper's code: 30,000)."
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1e4,
        description="Loss in nats above which denoise_truncated_bpr drops an interaction; BPR starts at "
        "ln 2 = .69 (thesis 3.5.1 gives no value).",
    )
    credence: Literal["mean1", "thesis", "bayes", "prior"] | None = Field(
        None,
        description="Form of bprac's credence: (3.27) over its mean, as printed, the posterior (E-3.27), or the prior "
        "(3.28) alone, which does not use the model.",
    )
    prior_var: float | Literal["fitted"] | None = Field(
        None,
        description="λ of bprac's prior N(0, λ) of the factors, in [1e-6, 100] (thesis 3.5.1: .6, .6, .2); fitted: "
        "that of the trained factors before each epoch (E-3.22).",
    )

    e_steps: Annotated[int, Field(ge=1)] | Literal["epoch"] | None = Field(
        None,
        description="T, E-steps of bprac, at equal distances over the training (thesis algorithm 1: 10); epoch: one "
        "before each epoch.",
    )

    candidates: int | None = Field(
        None,
        ge=1,
        le=2**20,
        description="|M_u|, unobserved items that dns and bns choose among (thesis 4.5.2.3: 1 to 15, best 5; table "
        "4.5: all); for srns, those that renew its memory.",
    )
    logq: bool | None = Field(
        None,
        description="Correct in_batch's softmax: subtract from an item's score the logarithm of its share of the "
        "interactions, by which it is sampled (E-5.Q; Yi et al., RecSys 2019).",
    )
    bns_lambda: float | Literal["warm"] | None = Field(
        None, description="λ of (4.30) (thesis 4.5.2.3: .1 to 15, best 5); warm: max(10 - 0.1 epoch, 2), BNS-1."
    )
    bns_prior: Literal["popularity", "users", "uninformative", "occupation", "social", "file", "label"] | None = Field(
        None,
        description="P_fn: popularity over all interactions (4.16), over the users (E-4.16), 1 / I (BNS-3), by "
        "occupation (BNS-4), by friends (E-4.B5), of an own file; for bns_oracle, of items that are not liked; label: "
        "the .04 of 4.5.2.5.",
    )
    prior_file: AbsoluteFile | None = Field(
        None,
        description="Parquet file of bns_prior=file, columns item and p, or user, item and p; other pairs have the "
        "popularity prior.",
    )
    bns_uniform_epochs: int | None = Field(
        None, ge=0, description="Epochs of uniform sampling before bns (BNS-2: some; otherwise 0)."
    )
    ecdf: Literal["exact", "sampled", "batch"] | None = Field(
        None, description="F of bns over all unobserved items, over ecdf_items of them, or over the batch's (E-4.15)."
    )
    ecdf_items: int | None = Field(
        None, ge=1, le=2**20, description="Items whose scores stand for all with ecdf=sampled (128)."
    )
    aobpr_lambda: float | None = Field(
        None, gt=0, le=1e9, description="λ of aobpr's exp(-rank / λ), in ranks (thesis: a parameter)."
    )
    srns_memory: int | None = Field(
        None, ge=1, le=2**16, description="Items in a user's memory (the paper's code: 8 to 20)."
    )
    srns_alpha: float | None = Field(None, ge=0, le=1e4, description="Weight of the spread (its code: 5).")
    srns_warmup: int | None = Field(
        None, ge=1, description="Epochs over which the spread's weight rises (its code: 50)."
    )
    srns_temperature: float | None = Field(
        None, ge=1e-3, le=1e4, description="τ of the memory's renewal by e^{score / τ} (its code: 10)."
    )
    contrast_weight: float | None = Field(
        None, ge=0, le=1e3, description="Weight of the contrastive term (SGL: .005 to .5; SimGCL: .2 to 2)."
    )
    contrast_temperature: float | None = Field(
        None, ge=1e-3, le=1e3, description="t of the term's cosines (SGL, SimGCL, LightGCL: .2; NCL: .05 to .1)."
    )
    augmentation: Literal["edge_drop", "node_drop", "random_walk"] | None = Field(
        None, description="What sgl drops: edges, nodes, or other edges in each layer."
    )
    drop_ratio: float | None = Field(None, ge=0, lt=1, description="Share that sgl drops (paper: .1 to .5).")
    noise: float | None = Field(None, ge=0, le=1e3, description="Length of simgcl's noise on a layer (paper: .1).")
    svd_rank: int | None = Field(None, ge=1, le=1024, description="Singular values that lightgcl keeps (paper: 5).")
    item_weight: float | None = Field(
        None, ge=0, le=1e3, description="Weight of the items' structural term of ncl, the users' being 1 (code: 1.5)."
    )
    prototype_weight: float | None = Field(None, ge=0, le=1e3, description="Weight of ncl's term with prototypes.")
    clusters: int | None = Field(
        None, ge=1, le=2**16, description="Prototypes of ncl for the users, and for the items (paper: 5 to 10,000)."
    )
    prototype_warmup: int | None = Field(
        None, ge=0, description="Epochs of ncl before it contrasts with prototypes (RecBole's code: 20)."
    )
    quality: bool = Field(
        False, description="Measure TNR (4.27) and INF (4.28) of the sampled negatives in every epoch."
    )
    truth: Literal["validation", "test", "planted"] | None = Field(
        None,
        description="Identifies false negatives for quality and bns_oracle: the test part as in the thesis (4.5.1.3, "
        "E-4.Q), which training then has seen, planted truth of generated data, or, for quality, the validation part.",
    )

    @model_validator(mode="after")
    def _no_unused_parameter(self) -> Self:
        """Reject parameters without effect and combinations that are not supported."""
        if self.backbone != "lightgcn" and self.layers != type(self).model_fields["layers"].default:
            raise ValueError(
                f"layers={self.layers} has no effect with backbone={self.backbone}. "
                "Drop layers, or set backbone=lightgcn"
            )
        if self.split in ("leave_last_out", "global_time") and self.split_seed and self.eval_users is None:
            raise ValueError(
                f"split_seed={self.split_seed} has no effect with split={self.split}, whose validation part is the "
                "latest of train. Drop split_seed, or set another split"
            )
        values = self.model_dump()
        if not BACKBONES[self.backbone].learnt:
            if message := combination_error(values):
                raise ValueError(message)
            if self.quality:
                raise ValueError(
                    f"quality=true has no effect with backbone={self.backbone}, which draws no negatives. Drop quality"
                )
            return self
        if self.lr_decay == 1 and self.lr_decay_every != LEARNT["lr_decay_every"]:
            raise ValueError(
                f"lr_decay_every={self.lr_decay_every} has no effect with lr_decay=1. "
                "Drop lr_decay_every, or set lr_decay below 1"
            )
        if self.optimizer == "sgd" and self.batch_size != LEARNT["batch_size"]:
            raise ValueError(
                f"batch_size={self.batch_size} has no effect with optimizer=sgd. Drop batch_size, or set optimizer=adam"
            )
        if self.optimizer == "sgd" and (unable := not_compiled(values)):
            raise ValueError(f"optimizer=sgd does not support {unable}. Set optimizer=adam")
        bounds = {**LOSSES[self.loss].bounds, **SAMPLERS[self.sampler].bounds}
        if message := combination_error(values):
            raise ValueError(message)
        if self.sampler == "in_batch" and self.batch_size > LARGEST_BLOCK:
            raise ValueError(
                f"batch_size={self.batch_size} with sampler=in_batch scores as many users with as many items. "
                f"Set a batch_size of at most {LARGEST_BLOCK}"
            )
        if message := out_of_bounds_error(values, bounds, ("loss", "sampler")):
            raise ValueError(message)
        return self

    @property
    def limits(self) -> dict[str, str]:
        """Settings that these values rule out, with the reason (``Limited`` in the contract)."""
        within = ("accumulate", "steps_per_epoch", "log_every")
        if not BACKBONES[self.backbone].learnt:
            return dict.fromkeys(within, f"backbone={self.backbone} is fitted as a whole")
        if self.optimizer == "sgd":
            reason = "optimizer=sgd takes one triple at a time, in compiled passes; sgd_batched and adam take batches"
            return dict.fromkeys(("workers", *within), reason)
        if LOSSES[self.loss].whole_batch:
            return dict.fromkeys(("workers", "accumulate"), f"loss={self.loss} ranks the losses of a whole batch")
        return {}

    def uses_gpu(self) -> bool:
        """Sequential SGD is compiled for CPUs."""
        return self.optimizer != "sgd"

    def check_objectives(self, metrics: Sequence[str]) -> None:
        """See :func:`~workloads.recommender.cutoffs.check_objectives`."""
        check_objectives(metrics, self.cutoffs)

    def check_data(self, root: Path, holdout: bool = True) -> None:
        """See :func:`~workloads.recommender.data_checks.check_data`."""
        data_checks.check_data(self.model_dump(), root, holdout)

    def check_memory(self, root: Path, available: int) -> None:
        """See :func:`~workloads.recommender.data_checks.check_memory`."""
        data_checks.check_memory(self.model_dump(), root, available)

    @staticmethod
    def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
        """The file of an own prior."""
        return {"prior_file": Path(values["prior_file"])} if values.get("prior_file") else {}

    @staticmethod
    def reads_test(values: Mapping[str, Any]) -> bool:
        return bool(values.get("truth") == "test")
