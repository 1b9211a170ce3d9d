"""Hyperparameters of VERA. Imports no PyTorch, so that the command line starts quickly.

"note" is the source document on calibrated retrieval, E-x are entries of docs/errata.md. A parameter that the chosen
method does not use is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from workloads.common_params import LearningRate, RetrievalParams, WeightDecay
from workloads.conditional_params import ConditionalParams, Rules
from workloads.contract import MID_RUN
from workloads.data.datasets import check_kind
from workloads.data.errors import DataError
from workloads.encoders import sources

Method: TypeAlias = Literal["vera", "edl", "softmax"]
Confidence: TypeAlias = Literal["evidence", "softmax", "mc_dropout"]
Recalibration: TypeAlias = Literal["none", "temperature", "platt", "isotonic"]

KINDS = ("graph_questions", "retrieval")
"""Supported kinds of data."""

Weight: TypeAlias = Annotated[float | None, Field(ge=0, le=100, json_schema_extra=MID_RUN)]
Factor: TypeAlias = Annotated[float, Field(ge=0, le=100)]
Stages: TypeAlias = tuple[Factor, Factor, Factor]
"""A factor for each of the note's stages: the ranking, the evidence of candidates, the calibration of queries."""

_VERA: Mapping[str, Any] = {
    "calibration_part": "train", "query_target": "hybrid", "cand_weight": 0.2, "query_weight": 1.0, "cons_weight": 0.2,
    "negative_weight": 0.05, "query_alpha": 0.7, "query_beta": 1.0, "stage_share": (0.5, 0.25, 0.25),
    "stage_lr": (1.0, 3.0, 3.0), "stage_backbone": (1.0, 0.0, 0.0), "stage_rank": (1.0, 1.0, 1.0),
    "stage_cand": (0.0, 1.0, 0.0), "stage_query": (0.0, 0.0, 1.0), "stage_cons": (0.0, 1.0, 1.0),
    "stage_switch": "epochs", "evidence_context": True, "cand_to_backbone": False, "query_to_backbone": False,
    "cons_to_ranking": False, "temperature": 1.0, "prior_positive": 0.05, "prior_negative": 1.0,
    "evidence_map": "exponential",
}  # fmt: skip
_GROUPS = {"groups": "confidence", "group_bins": 20}
_RULES: Rules = {
    ("method", "vera"): {**_VERA, "confidence": "evidence"},
    ("method", "edl"): {"prior_positive": 0.05, "prior_negative": 1.0, "confidence": "evidence"},
    ("method", "softmax"): {"temperature": 1.0, "confidence": "softmax"},
    ("query_target", "hybrid"): _GROUPS,
    ("query_target", "group"): _GROUPS,
    ("query_target", "eps"): {"eps": 0.03},
    ("calibration_part", "train"): {"calibration_share": 0.1},
    ("stage_switch", "plateau"): {"stage_patience": 3},
}

_CONFIDENCE: Mapping[Method, tuple[Confidence, ...]] = {
    "vera": ("evidence",),
    "edl": ("evidence",),
    "softmax": ("softmax", "mc_dropout"),
}


class Params(RetrievalParams):
    """Parameters of VERA and its baselines."""

    conditional = ConditionalParams(lambda: _RULES, {"method": "vera"}, {"pooling": sources.pooling_of})
    abstains: ClassVar[bool] = True

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, *KINDS))] = Field(
        "synthetic-questions",
        min_length=1,
        description="Questions over a graph or documents with judgements: a name (`data list`) or a folder.",
    )
    calibration_part: Literal["train", "validation"] | None = Field(
        None,
        description="Queries that stages 2 and 3 train on: some held back from training, or the validation part, which "
        "a recalibration uses too.",
    )
    calibration_share: float | None = Field(
        None,
        ge=0,
        le=0.9,
        description="Share of the training queries held back from the ranking for stages 2 and 3; 0: all stages train "
        "on all of them.",
    )
    eval_candidates: int = Field(
        200,
        ge=1,
        le=10_000,
        description="Number of candidates: BM25's documents, or the triples around a topic and random ones.",
    )
    eval_candidates_seed: int = Field(0, ge=0, description="Seed of the random triples.")
    eval_k: int | Literal["validation"] = Field(
        "validation",
        description="k of the success Z^(k); validation: the smallest of 1, 2, 3, 5, 10, 20 with a base rate in "
        "[.3, .9].",
    )
    eval_risk: float = Field(0.1, gt=0, lt=1, description="Risk at which coverage and abstention are measured.")
    eval_bins: int = Field(15, ge=2, le=1000, description="Bins of equal mass in the calibration error.")
    eval_resamples: int = Field(200, ge=20, le=100_000, description="Resamples of each bootstrap interval.")

    encoder: Annotated[str, AfterValidator(sources.check)] = Field(
        "tiny",
        min_length=1,
        description="Encoder, frozen without encoder_lr: minilm, bert-base, tiny (random), a folder, or a name on the "
        "Hugging Face hub.",
    )
    encoder_lr: LearningRate | None = Field(
        None,
        description="Train the encoder too, where the backbone is trained, with this learning rate (note 2); unset: "
        "frozen. Each step then encodes the candidates of its questions.",
    )
    pooling: Literal["mean", "cls", "max"] = Field(
        "mean", description="How token vectors become the text's vector; unset: as saved with the encoder, else mean."
    )
    max_length: int = Field(128, ge=8, le=8192, description="Tokens of a text. Longer ones are cut.")
    hidden: int = Field(128, ge=2, le=8192, description="Width of the backbone.")
    graph_layers: int = Field(
        0,
        ge=0,
        le=8,
        description="Layers of message passing over the question's neighbourhood, between triples that share an entity "
        "(note 2 and 5; E-V14); 0: a triple's own features only.",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of the backbone's hidden layer.")

    method: Method = Field(
        "vera",
        description="vera (note), edl (one evidential head, all candidates weigh the same) or softmax (ranking only).",
    )
    confidence: Confidence | None = Field(
        None,
        description="Confidence c: evidence, the note's c^(k); softmax, probability of the first k; mc_dropout, its "
        "mean over 20 dropout masks.",
    )
    recalibration: Recalibration = Field(
        "none",
        description="Map of c, fitted on validation (E-V6); temperature divides the scores, or logit c.",
    )
    temperature: float | None = Field(
        None, gt=0, le=100, description="τ of the ranking's softmax (note 4.1).", json_schema_extra=MID_RUN
    )
    prior_positive: float | None = Field(None, ge=1e-4, le=10, description="λ+, floor of α (E-V8: .01 to .1).")
    prior_negative: float | None = Field(None, ge=1e-4, le=10, description="λ-, floor of β (E-V8: 1).")
    evidence_map: Literal["exponential", "softplus"] | None = Field(
        None,
        description="From the evidential head's outputs to α and β above 0: softplus as printed (note 2), or "
        "exponential up to e^9 and then linear (E-V13).",
    )
    evidence_context: bool | None = Field(
        None,
        description="Give the evidential head, in addition to z, the candidate's features and the comparison of its "
        "score with the others' (E-V15; false: as printed).",
    )

    cand_weight: Weight = Field(None, description="λ_cand (note 6: .1 to .3).")
    query_weight: Weight = Field(None, description="λ_query (note 6: .5 to 1).")
    cons_weight: Weight = Field(None, description="λ_cons (note 6: .1 to .3).")
    negative_weight: Weight = Field(None, description="λ_neg (note 6: .01 to .1).")
    query_alpha: float | None = Field(
        None, ge=0, le=1, description="α, of KL(p||q) against KL(q||p) (note 6: .7).", json_schema_extra=MID_RUN
    )
    query_beta: Weight = Field(None, description="β, of the entropy gate (note 6: 1).")
    query_target: Literal["hybrid", "eps", "group"] | None = Field(
        None, description="Target p: hybrid, Z and its group's rate; eps, Z clipped; group, its rate (E-V1, E-V2)."
    )
    # 1 - eps must differ from 1 in float32, or KL(q||p) is infinite.
    eps: float | None = Field(None, ge=1e-7, lt=0.5, description="Clip of Z with query_target=eps (E-V2: .03).")
    groups: Literal["confidence", "type"] | None = Field(
        None, description="Groups of queries: bins of c, or the query types (E-V1)."
    )
    group_bins: int | None = Field(
        None, ge=1, le=1000, description="Maximum number of bins; each has 50 queries or more (E-V1: 20)."
    )

    stage_share: Stages | None = Field(None, description="Relative lengths of the stages; 0 skips one (E-V11).")
    stage_lr: Stages | None = Field(None, description="Factors on lr.")
    stage_backbone: Stages | None = Field(
        None, description="Additional factors on the lr of backbone and ranking head; 0 freezes them (note 4.5)."
    )
    stage_rank: Stages | None = Field(None, description="Factors on the ranking's loss.")
    stage_cand: Stages | None = Field(None, description="Factors on λ_cand.")
    stage_query: Stages | None = Field(None, description="Factors on λ_query.")
    stage_cons: Stages | None = Field(None, description="Factors on λ_cons.")
    stage_switch: Literal["epochs", "plateau"] | None = Field(
        None, description="epochs: stages end after their share; plateau: also when their loss stops falling."
    )
    stage_patience: int | None = Field(
        None, ge=1, le=1000, description="With plateau: epochs without a lower loss after which a stage ends (3)."
    )
    cand_to_backbone: bool | None = Field(None, description="L_cand also trains the backbone (E-V9).")
    query_to_backbone: bool | None = Field(None, description="L_query also trains the backbone (E-V9).")
    cons_to_ranking: bool | None = Field(None, description="L_cons also trains the ranking (E-V9).")

    batch_size: int = Field(64, ge=1, le=2**16, description="Queries in a global batch, over all workers.")
    lr: LearningRate = Field(1e-3, description="Learning rate of AdamW.")
    lr_decay: Literal["none", "linear"] = Field(
        "linear", description="none: constant; linear: falls to 0 over each stage (a baseline has one stage)."
    )
    weight_decay: WeightDecay = Field(0.01, description="Of AdamW.")
    clip: float = Field(1.0, gt=0, le=1e6, description="The gradient is clipped to this norm.")

    @field_validator("eval_k")
    @classmethod
    def _some_k(cls, k: int | str) -> int | str:
        if isinstance(k, int) and not 1 <= k <= 1000:
            raise ValueError(f"eval_k={k} is not from 1 to 1000")
        return k

    @model_validator(mode="after")
    def _has_a_graph(self) -> Self:
        """Reject message passing between documents."""
        if self.graph_layers:
            try:
                check_kind(self.dataset, KINDS[0])
            except DataError:
                raise ValueError(
                    f"graph_layers={self.graph_layers} needs questions over a graph, and dataset {self.dataset!r} has "
                    "documents. Set graph_layers=0"
                ) from None
        return self

    def check_plan(self, epochs: int, refit: bool) -> None:
        """Raises ValueError for a refit."""
        if refit:
            raise ValueError(
                "a refit trains on the validation part, where VERA chooses k, the threshold and its maps. "
                "Set refit=false"
            )

    @model_validator(mode="after")
    def _confident(self) -> Self:
        """Reject a confidence that the method does not have, and stages without any epoch."""
        if self.confidence not in _CONFIDENCE[self.method]:
            fix = " or ".join(_CONFIDENCE[self.method])
            raise ValueError(f"method={self.method} has no confidence={self.confidence}. Set confidence to {fix}")
        if self.confidence == "mc_dropout" and self.dropout == 0:
            raise ValueError("confidence=mc_dropout needs dropout, got dropout=0. Set it above 0, to 0.1 or so")
        if self.stage_share is not None and not any(self.stage_share):
            raise ValueError(
                "stage_share=(0, 0, 0) leaves no stage to train in. Give at least one stage a share above 0"
            )
        return self

    @model_validator(mode="after")
    def _ranks_by_training_queries(self) -> Self:
        """Reject training of the ranking on the validation part, by which the run is selected."""
        if self.calibration_part != "validation":
            return self
        own = {"stage_rank": "stage_rank=[1,0,0]"}
        for name, loss, flag in (
            ("stage_cand", "cand", "cand_to_backbone"),
            ("stage_query", "query", "query_to_backbone"),
            ("stage_cons", "cons", "cons_to_ranking"),
        ):
            if getattr(self, flag) and getattr(self, f"{loss}_weight"):
                own[name] = f"{flag}=false"
        for name, fix in own.items():
            factors = getattr(self, name)
            rates = self.stage_backbone or ()
            if any(factor and rate for factor, rate in zip(factors[1:], rates[1:])):
                raise ValueError(
                    f"calibration_part=validation with {name}={factors} and stage_backbone={rates} trains the ranking "
                    f"on validation queries. Set {fix}, or stage_backbone=[1,0,0]"
                )
        return self
