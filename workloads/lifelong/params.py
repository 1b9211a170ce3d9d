"""Hyperparameters of lifelong retrieval. Imports no PyTorch, so that the command line starts quickly.

"notes" is the source document on L2R, E-x are entries of docs/errata.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from workloads.common_params import LearningRate, RetrievalParams, WeightDecay
from workloads.conditional_params import ConditionalParams, Rules
from workloads.contract import MID_RUN
from workloads.data.datasets import check_kind
from workloads.encoders import sources

Memory: TypeAlias = Literal["none", "isd", "random", "mir", "gss", "ocs"]
Compatible: TypeAlias = Literal["no", "frozen", "embedding", "ranking"]


def _default_size(values: Mapping[str, Any], *, at_most: int, name: str = "") -> int:
    """A memory's default size, limited by the number of documents it is ever offered and by the parameter ``name``.

    Values that are not numbers are ignored here and rejected later.
    """
    defaults = {key: Params.model_fields[key].default for key in ("n_new", "split_sessions")}
    try:
        n_new = int(values.get("n_new", defaults["n_new"]))
        sessions = int(values.get("split_sessions", defaults["split_sessions"]))
        limit = int(values.get(name) or at_most)
    except (TypeError, ValueError):
        return at_most
    return max(1, min(at_most, limit, n_new * sessions))


_MEMORY = {
    "n_memory": lambda values: _default_size(values, at_most=4, name="capacity"),
    "capacity": lambda values: _default_size(values, at_most=12),
}
_RULES: Rules = {
    ("update", "continue"): {"memory": "isd", "compatible": "ranking"},
    ("update", "none"): {"memory": "none", "compatible": "frozen"},
    ("update", "retrain"): {"memory": "none", "compatible": "no"},
    ("new", "l2r"): {"alpha": 0.5, "standardise": False, "diversity": "across"},
    **{("memory", memory): _MEMORY for memory in ("random", "mir", "gss", "ocs")},
    ("memory", "isd"): {**_MEMORY, "diversity": "across"},
    ("compatible", "embedding"): {"align_weight": 1.0},
    ("compatible", "ranking"): {"align_weight": 1.0, "detach_target": False},
}


class Params(RetrievalParams):
    """Parameters of lifelong retrieval. The defaults are L2R with ranking alignment."""

    conditional = ConditionalParams(
        lambda: _RULES, {"update": "continue", "new": "l2r"}, {"pooling": sources.pooling_of}
    )
    abstains: ClassVar[bool] = True

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, "retrieval"))] = Field(
        "synthetic-retrieval",
        min_length=1,
        description="Documents, queries and judgements: a name (`data list`), a folder in the layout of BEIR, LoTTE or "
        "Multi-CPR, or a folder with one such folder per topic.",
    )
    split_seed: int = Field(0, ge=0, description="Seed of the sessions and of the split of the queries.")
    split_sessions: int = Field(4, ge=1, le=1000, description="T: number of sessions after session 0.")
    split_first: float = Field(0.5, gt=0, lt=1, description="Share of each topic's documents in session 0.")
    split_main: float = Field(
        0.7, ge=0, le=1, description="Share of a later session's documents that are from its main topic."
    )
    split_topics: int = Field(
        5, ge=2, le=1000, description="Number of clusters used as topics if the documents' ids name none."
    )

    split_queries: Literal["arriving"] | None = Field(
        None,
        description="Queries that a session is judged by: those with an indexed relevant document that have arrived, "
        "each with the documents of its topic (E-L9); unset: all with an indexed relevant document.",
    )

    encoder: Annotated[str, AfterValidator(sources.check)] = Field(
        sources.TINY,
        min_length=1,
        description="minilm, bert-base, tiny (from scratch), a folder, or a model name on the Hugging Face hub.",
    )
    encoders: Literal["tied", "apart"] = Field(
        "tied", description="One encoder of queries and documents, or one of each, which begin equal (notes: E^q, E^d)."
    )
    pooling: Literal["mean", "cls", "max"] = Field(
        "mean", description="How token vectors become the text's vector; unset: as saved with the encoder, else mean."
    )
    max_length: int = Field(
        128, ge=3, le=8192, description="Tokens of a text. Longer ones are cut; their share is reported."
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout of hidden layers and attention; unset: the encoder's own."
    )
    temperature: float = Field(
        0.05, gt=0, le=10, description="f(q, d) is the cosine divided by it (Sentence-BERT's scale of 20)."
    )

    update: Literal["none", "continue", "retrain"] = Field(
        "continue",
        description="Model of later sessions. none: that of session 0; continue: trained further from the session "
        "before; retrain: trained from the start on all documents, which are embedded again.",
    )
    new: Literal["l2r", "random", "bm25"] = Field(
        "l2r",
        description="How negatives are chosen from BM25's candidates in sessions after 0: by PSS and ISD, at random, "
        "or the first ones. In session 0 all methods choose at random.",
    )
    n_new: int = Field(6, ge=1, le=1000, description="n_1: new negatives of a query.")
    candidates: int = Field(50, ge=1, le=10_000, description="BM25's candidates of a session for a query, D_S.")
    alpha: float | None = Field(
        None, ge=0, le=1, description="Weight of PSS against ISD (E-L3: 0.5; closer to 1: easier negatives)."
    )
    standardise: bool | None = Field(None, description="Standardise PSS and ISD (E-L3: not in the notes).")
    diversity: Literal["across", "whole"] | None = Field(
        None,
        description="ISD of parts across the query (notes), or of whole vectors (the reader's objection, E-L4).",
    )
    memory: Memory | None = Field(
        None,
        description="Negatives of earlier sessions: none, isd (notes), random (ER), mir, gss or ocs; by default isd.",
    )
    n_memory: int | None = Field(None, ge=1, le=1000, description="n_2: replayed negatives of a query.")
    capacity: int | None = Field(None, ge=1, le=10_000, description="Number of documents in a query's buffer.")
    compatible: Compatible | None = Field(
        None,
        description="no: embed all documents again after every session (L_no-com). The others never do so and use "
        "L_rank: alone (frozen), or with alignment of embeddings (L_align-e) or rankings (L_align-r, the default).",
    )
    align_weight: float | None = Field(None, ge=0, le=1e6, description="λ of the alignment.", json_schema_extra=MID_RUN)
    detach_target: bool | None = Field(
        None, description="No gradient through p of L_align-r (E-L5: both sides have one)."
    )

    batch_size: int = Field(16, ge=1, le=2**16, description="Queries in a global batch, over all workers.")
    lr: LearningRate = Field(2e-5, description="Peak learning rate of each session.")
    weight_decay: WeightDecay = Field(0.01, description="Of AdamW, on matrices (BERT: 0.01).")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Share of a session's steps in which lr rises; then it falls linearly."
    )
    clip: float = Field(
        1.0, gt=0, le=1e6, description="The gradient is clipped to this norm (BERT: 1).", json_schema_extra=MID_RUN
    )
    first_share: float = Field(
        0.5, gt=0, lt=1, description="Share of all epochs in session 0. The other sessions divide the rest equally."
    )
    index: str | None = Field(
        None,
        description="Folder for the index as memory-mapped Arrow files; unset: the index is in the checkpoints.",
    )

    @field_validator("index")
    @classmethod
    def _absolute(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).is_absolute():
            raise ValueError(f"index={folder} is not an absolute path: workers may run elsewhere. Give the whole path")
        return folder

    @model_validator(mode="after")
    def _readable(self) -> Self:
        """Reject combinations without effect, and a memory larger than what it can ever be offered."""
        if self.update != "continue" and self.memory != "none":
            raise ValueError(
                f"memory={self.memory} has no effect with update={self.update}. Set memory=none, or update=continue"
            )
        needed = {"none": ("frozen",), "retrain": ("no",)}.get(self.update)
        if needed and self.compatible not in needed:
            raise ValueError(
                f"update={self.update} goes with compatible={needed[0]}, got {self.compatible}. Set compatible="
                f"{needed[0]}, or update=continue"
            )
        if self.n_new > self.candidates:
            raise ValueError(f"n_new={self.n_new} is more than the candidates={self.candidates} it is chosen from")
        if self.capacity is not None and self.n_memory is not None:
            if self.n_memory > self.capacity:
                raise ValueError(f"n_memory={self.n_memory} is more than the memory's capacity={self.capacity}")
            pool = self.n_new * self.split_sessions
            if self.capacity > pool:
                raise ValueError(
                    f"capacity={self.capacity} is more than a query's memory can ever be offered: n_new={self.n_new} "
                    f"in each of {self.split_sessions} sessions before the last is {pool}. Lower capacity to {pool}"
                )
        return self

    def check_plan(self, epochs: int, refit: bool) -> None:
        """Raises ValueError if a session would have no epoch."""
        if epochs <= self.split_sessions:
            raise ValueError(
                f"epochs={epochs} are too few for {self.split_sessions + 1} sessions, each of which needs one. "
                f"Set epochs={self.split_sessions + 1} or more, or fewer split_sessions"
            )
