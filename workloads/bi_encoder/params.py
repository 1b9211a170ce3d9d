"""Hyperparameters of the bi-encoder. Imports no PyTorch, so that the command line starts quickly.

"note" is the source document, the design of a bi-encoder for STS-B; E-x are entries of docs/errata.md. A parameter that
the chosen loss does not use is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from workloads.bi_encoder.losses import (
    CONDITIONAL,
    LOSSES,
    batch_error,
    check_positives,
    dims_error,
    hard_error,
    positives_error,
    scoring_error,
)
from workloads.common_params import EncoderParams, WeightDecay, comma_separated
from workloads.conditional_params import OneOf, out_of_bounds_error
from workloads.contract import MID_RUN, Preset
from workloads.data.cache import local_path
from workloads.data.datasets import check, check_kind
from workloads.data.interactions.tables import is_path
from workloads.data.pairs.types import ALIASES, KIND
from workloads.encoders import sources

RETRIEVAL = "retrieval"

Loss: TypeAlias = Annotated[str, OneOf(LOSSES)]


PRESETS: Mapping[str, Preset] = {
    "note": Preset(
        "the design note on STS-B, 2.4, 6.3 and 6.6",
        {
            "loss": "mse", "lowest_cosine": -1.0, "pooling": "mean", "max_length": 128, "dropout": 0.1,
            "batch_size": 32, "lr": 2e-5, "warmup": 0.1, "weight_decay": 0.01, "clip": 1.0, "epochs": 5, "patience": 3,
        },
    ),
}  # fmt: skip
"""The preset does not set the encoder: the note's bert-base has to be downloaded first."""


class Params(EncoderParams):
    """Parameters of the bi-encoder.

    The defaults are the note's (6.6), with two exceptions: the target of the mse loss, because the note's makes a
    pretrained encoder worse (E-S0), and the learning rate of a pretrained encoder. ``--preset note`` sets all of the
    note's values.
    """

    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    tables: ClassVar[Mapping[str, Mapping[str, Any]]] = {"loss": LOSSES}
    conditional = CONDITIONAL

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(ALIASES.get(name, name), KIND))] = Field(
        "synthetic-pairs",
        min_length=1,
        description="Pairs of sentences with scores from 0 to 5: a name (`data list`), or your own table or folder "
        "with the columns sentence1, sentence2 and score.",
    )
    split: Literal["official", "dev"] = Field(
        "official",
        description="official: the source's parts. dev: its dev part is the test part, and the validation part is "
        "taken from train; for a source that hides its test scores (E-S1).",
    )
    split_seed: int = Field(0, ge=0, description="Seed of the parts that are taken from train.")
    encoder: Annotated[str, AfterValidator(sources.check)] = Field(
        sources.TINY,
        min_length=1,
        description="minilm, bert-base (note), tiny (from scratch), a folder, or a model name on the Hugging Face hub.",
    )
    scoring: Literal["bi", "cross"] = Field(
        "bi",
        description="bi: the cosine of two vectors. cross: both sentences in one sequence, a score in [0, 1] and no "
        "vectors; slower and more exact (note 2.2, E-S6).",
    )
    pooling: Literal["mean", "cls", "max"] = Field(
        "mean",
        description="How token vectors become the sentence vector (note 2.3: mean is best); unset: as saved with the "
        "encoder by sentence-transformers, else mean.",
    )
    max_length: int = Field(
        128,
        ge=3,
        le=8192,
        description="Tokens of a sentence (note: 128). Longer ones are cut; their share is reported.",
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout of hidden layers and attention; unset: the encoder's own (note: 0.1)."
    )
    loss: Loss = Field(
        "mse",
        description="On the cosine of a pair, or in the batch, with its other sentences as negatives; one of the "
        "losses listed with their sources.",
    )
    positives: Literal["scored", "dropout"] = Field(
        "scored",
        description="scored: the pairs with their scores. dropout: their sentences without scores, each encoded twice "
        "with other masks of dropout (SimCSE: Gao et al., EMNLP 2021; note 2.2); for losses in the batch.",
    )
    calibrate_on: Annotated[str, AfterValidator(lambda name: check_kind(name, RETRIEVAL))] | None = Field(
        None,
        min_length=1,
        description="A collection whose documents the registered model searches, and by whose judged queries it "
        "promises a risk (predict ... risk=0.1): a folder in BEIR's layout, or a name.",
    )
    batch_size: int = Field(32, ge=1, le=2**20, description="Pairs in a global batch, over all workers (note: 32).")
    lr: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Highest learning rate; unset: 5e-5 (note: 2e-5), and 1e-3 for an encoder from scratch.",
        json_schema_extra=MID_RUN,
    )
    dims: Annotated[tuple[int, ...] | None, BeforeValidator(comma_separated)] = Field(
        None,
        description="Matryoshka training (Kusupati et al., NeurIPS 2022): the loss is summed over vectors cut to these "
        "lengths, such as 384,192,96, of which the first is the encoder's; validation and test report each.",
    )
    hard_negatives: int = Field(
        0, ge=0, le=64, description="Further negatives of each anchor, for losses in the batch: the training "
        "sentences most similar to it, by the model at the beginning of the epoch (NV-Retriever).",
    )  # fmt: skip
    hard_margin: float | None = Field(
        None, ge=0, lt=2, description="How far below that of its positive pair a hard negative's cosine is at least; "
        "unset: 0.",
    )  # fmt: skip
    warmup: float = Field(
        0.1, ge=0, le=1, description="Share of all steps in which lr rises (note: 0.1); then it falls to 0."
    )
    weight_decay: WeightDecay = Field(0.01, description="Of AdamW, except on biases and norms (note: 0.01).")
    clip: float = Field(
        1.0, gt=0, description="The gradient is clipped to this norm (note: 1).", json_schema_extra=MID_RUN
    )

    lowest_cosine: float | None = Field(
        None,
        ge=-1,
        lt=1,
        description="Target of mse for a score of 0: 0 (note 2.4, sentence-transformers) or -1 (note 6.3, E-S0).",
    )
    temperature: float | None = Field(
        None, gt=0, le=10, description="t, which divides every cosine (0.05: sentence-transformers' scale of 20)."
    )
    positive_from: float | None = Field(
        None, ge=0, le=5, description="Lowest score of a positive pair (4: equivalent but for details)."
    )
    margin: float | None = Field(
        None, ge=-1, lt=1, description="Cosine up to which cosine_embedding has no loss for a negative pair (PyTorch)."
    )
    tau: float | None = Field(
        None, ge=0, lt=1, description="τ+ of dcl, hcl, bcl: share of the batch that is positive (2.2.4.4)."
    )
    alpha: float | None = Field(
        None, ge=0.5, le=1, description="α of bcl: how well scores separate the classes (E-6.21)."
    )
    beta: float | None = Field(
        None, ge=0, le=100, description="Hardness of negatives: of hcl from 0 (5.52), of bcl in [0, 1] (6.25)."
    )

    @model_validator(mode="after")
    def _in_bounds(self) -> Self:
        """Reject a value outside the bounds of its loss."""
        if message := (
            out_of_bounds_error(self.model_dump(), LOSSES[self.loss].bounds, ("loss",))
            or scoring_error(self.scoring, self.loss, self.positives, self.lowest_cosine)
            or dims_error(self.dims, self.scoring, self.encoder, sources.config_of(self.encoder).get("hidden_size"))
            or hard_error(self.hard_negatives, self.hard_margin, self.loss, self.positives, self.scoring)
            or positives_error(self.positives, self.loss, self.dropout, self.encoder)
            or batch_error(self.batch_size, self.loss, self.hard_negatives)
        ):
            raise ValueError(message)
        if self.calibrate_on is not None and self.scoring == "cross":
            raise ValueError(
                f"calibrate_on={self.calibrate_on} needs vectors, which scoring=cross does not have. Set scoring=bi"
            )
        return self

    def check_data(self, root: Path, holdout: bool = True) -> None:
        """Check, before a start, the user's own pairs and the collection of ``calibrate_on``.

        Raises:
            ValueError: the training part has no scores, and ``positives`` needs them; the collection cannot be read, or
                has too few judged queries.
        """
        if is_path(self.dataset):
            from workloads.data.pairs.load import load_pairs

            pairs = load_pairs(self.dataset, root, self.split, seed=self.split_seed)
            check_positives(self.positives, pairs.train.hidden)
        if self.calibrate_on is not None:
            from workloads.bi_encoder.calibration_queries import calibration_queries

            check(self.calibrate_on, root)
            calibration_queries(self.calibrate_on, root, seed=0)

    @staticmethod
    def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
        """The encoder's folder, and that of ``calibrate_on``; the files of a built-in collection have known digests."""
        name = values.get("calibrate_on")
        own = {"calibrate_on": local_path(name)} if name and is_path(name) else {}
        return own | sources.input_files(values)

    def of_loss(self) -> dict[str, Any]:
        """The parameters of the loss, by name."""
        return {name: getattr(self, name) for name in LOSSES[self.loss].params}
