"""Hyperparameters of the text ranker. Imports no PyTorch, so that the command line starts quickly.

"note" is the source document on pairwise text ranking, E-x are entries of docs/errata.md. A parameter that the chosen
loss and scoring do not use is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from workloads.common_params import LearningRate, RetrievalParams, WeightDecay, absolute
from workloads.conditional_params import OneOf
from workloads.data.datasets import check_kind
from workloads.encoders import sources
from workloads.text_ranker.losses import CONDITIONAL, LOSSES

Loss: TypeAlias = Annotated[str, OneOf(LOSSES)]


class Params(RetrievalParams):
    """Parameters of the text ranker."""

    tables: ClassVar[Mapping[str, Mapping[str, Any]]] = {"loss": LOSSES}
    conditional = CONDITIONAL
    abstains: ClassVar[bool] = True

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, "retrieval"))] = Field(
        "synthetic-retrieval",
        min_length=1,
        description="Documents, queries and judgements: a name (`data list`), a folder in BEIR's form, or Parquet of "
        "(query, positive, negative).",
    )
    first_stage: Annotated[str, AfterValidator(partial(absolute, what="run"))] | None = Field(
        None,
        description="Whose documents are reranked, and are the hard negatives: the absolute path of another system's "
        "run in TREC's form, `topic Q0 document rank score tag`; unset: BM25's.",
    )
    eval_candidates: int = Field(
        100, ge=1, le=10_000, description="Number of these documents that are reranked per query (100 is usual)."
    )

    encoder: Annotated[str, AfterValidator(sources.check)] = Field(
        "tiny",
        min_length=1,
        description="minilm, bert-base, tiny (from scratch), a folder, or a model name on the Hugging Face hub.",
    )
    scoring: Literal["cross", "bi"] = Field(
        "cross",
        description="cross: query and document in one sequence, a linear score (note); bi: cosine of two vectors.",
    )
    pooling: Literal["cls", "mean", "max"] | None = Field(
        None,
        description="How token vectors become one vector (note: the first token's; bi: as saved with the encoder, "
        "else the mean).",
    )
    temperature: float | None = Field(
        None, gt=0, le=10, description="Of scoring=bi: divides the cosine (0.05: Sentence-BERT's scale of 20)."
    )
    max_length: int = Field(
        192, ge=8, le=8192, description="Tokens of a sequence. Longer ones are cut; their share is reported."
    )
    long_documents: Literal["cut", "best_passage"] = Field(
        "cut",
        description="cut: a sequence ends at max_length. best_passage: a document has overlapping passages, and its "
        "score is that of the best one (Dai and Callan, SIGIR 2019).",
    )
    passage_words: int | None = Field(None, ge=1, le=4096, description="Words of a passage.")
    passage_stride: int | None = Field(
        None, ge=1, le=4096, description="Words from a passage's beginning to the next one's."
    )
    passages: int | None = Field(
        None, ge=1, le=1024, description="Passages of a document, the first ones; the rest of it is cut."
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout of the encoder; unset: its own (BERT: 0.1; tiny: 0)."
    )

    loss: Loss = Field(
        "ranknet",
        description="Of pairs of documents, or of a query's whole list; one of the losses listed with their sources.",
    )
    margin: float | None = Field(None, gt=0, le=100, description="Margin m between scores (E-R3: 1).")
    sigma: float | None = Field(
        None, gt=0, le=100, description="σ, which scales the difference of scores (note: 1 and others)."
    )
    learnable: bool | None = Field(
        None, description="Learn margin or σ within (0.1, 2), starting at its value (note: learnable_margin; E-R4)."
    )
    ties: Literal["none", "judged", "all"] | None = Field(
        None,
        description="Which pairs of equal grades are used, with S = 0: none, those of judged documents, or all (an "
        "unjudged document has grade 0).",
    )
    positives: int = Field(1, ge=1, le=1024, description="Most relevant documents of a query in a step.")
    negatives: int = Field(3, ge=1, le=1024, description="Other documents of a query in a step.")
    hard: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the negatives that are BM25's candidates or judged 0; the rest is drawn from all.",
    )
    pool: int = Field(50, ge=1, le=10_000, description="Number of BM25's candidates that hard negatives come from.")

    hard_margin: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Hard negatives are those that the model scores highest at the beginning of the epoch, at least so "
        "far below the lowest of the query's relevant documents (NV-Retriever); unset: they are sampled.",
    )

    batch_size: int = Field(8, ge=1, le=2**16, description="Queries in a global batch, over all workers.")
    lr: LearningRate = Field(3e-5, description="Peak learning rate (BERT's authors: 2e-5 to 5e-5).")
    weight_decay: WeightDecay = Field(0.01, description="Of AdamW, on matrices (BERT: 0.01).")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Share of all steps in which lr rises; then it falls linearly (BERT: 0.1)."
    )
    clip: float = Field(1.0, gt=0, le=1e6, description="The gradient is clipped to this norm (BERT: 1).")
    bm25_weight: float | Literal["validation"] = Field(
        "validation",
        description="Weight of BM25's standardised score in the interpolated one, from 0 to 1; validation: the best "
        "of 21 values by NDCG@10 on the validation part.",
    )

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        """Reject a learnable margin or σ outside of its bounds, and a weight outside [0, 1]."""
        if self.hard_margin is not None and not round(self.hard * self.negatives):
            raise ValueError(
                f"hard_margin={self.hard_margin:g} has no effect without hard negatives, and hard={self.hard:g} of "
                f"negatives={self.negatives} is none. Set hard to {1 / self.negatives:.3g} or more"
            )
        start = self.margin if self.margin is not None else self.sigma
        if self.learnable and start is not None and not 0.1 < start < 2:
            name = "margin" if self.margin is not None else "sigma"
            raise ValueError(f"{name}={start:g} with learnable=true starts outside of its bounds (0.1, 2)")
        if isinstance(self.bm25_weight, float) and not 0 <= self.bm25_weight <= 1:
            raise ValueError(f"bm25_weight={self.bm25_weight:g} is not in [0, 1]")
        if (
            self.passage_stride is not None
            and self.passage_words is not None
            and self.passage_stride > self.passage_words
        ):
            raise ValueError(
                f"passage_stride={self.passage_stride} leaves out words between passages of passage_words="
                f"{self.passage_words}. Set it to at most {self.passage_words}"
            )
        return self

    def check_data(self, root: Path, holdout: bool = True) -> None:
        """Raises ValueError if the run of ``first_stage`` is not there, or is not one of the dataset's texts."""
        if self.first_stage is None:
            return
        if not Path(self.first_stage).is_file():
            raise ValueError(f"first_stage={self.first_stage} is not a file on this machine. Set the path of a run")
        from workloads.data.retrieval.load import load_retrieval
        from workloads.data.retrieval.runs import read_run

        read_run(
            Path(self.first_stage), load_retrieval(self.dataset, root, self.dataset_unknown), 1, self.dataset_unknown
        )

    @staticmethod
    def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
        """The run of ``first_stage``, and the encoder's folder."""
        own = {"first_stage": Path(values["first_stage"])} if values.get("first_stage") else {}
        return own | sources.input_files(values)

    @property
    def split_documents(self) -> tuple[int, int, int] | None:
        """Words, stride and number of a document's passages; None if documents are not split."""
        if self.passage_words is None or self.passage_stride is None or self.passages is None:
            return None
        return self.passage_words, self.passage_stride, self.passages

    def check_plan(self, epochs: int, refit: bool) -> None:
        """Raises ValueError for a refit with ``bm25_weight="validation"``."""
        if refit and self.bm25_weight == "validation":
            raise ValueError(
                "a refit trains on the validation part, where bm25_weight would be chosen. Set bm25_weight to what the "
                "selected run reports, or refit=false"
            )
