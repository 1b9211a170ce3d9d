"""Text encoders: any transformer with its tokenizer, on packed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from workloads.conditional_params import required
from workloads.data.errors import DataError
from workloads.encoders.packing import ATTENTION, Packed, pack
from workloads.encoders.pooling import Pooling, pool
from workloads.encoders.sources import AFTER_PADDING, TINY, TINY_CONFIG, check_max_length, folder_of
from workloads.encoders.tokens import Tokenizer, Tokens
from workloads.seeding import derive, generator

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from workloads.common_params import EncoderParams
    from workloads.contract import Precision, Runtime

_PACKABLE = ("bert", *AFTER_PADDING)
"""Models whose forward accepts positions and our attention."""

_TINY_VOCABULARY = 4096

_DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob",  # BERT and most others
    "dropout", "attention_dropout", "hidden_dropout", "activation_dropout",  # DistilBERT, XLM, Funnel
    "embedding_dropout", "mlp_dropout",  # ModernBERT
    "resid_pdrop", "embd_pdrop", "attn_pdrop",  # GPT-2
)  # fmt: skip
"""Names of the dropout settings of hidden layers and attention."""

_AT_ONCE = {"cpu": 2**12, "cuda": 2**17}
"""Tokens in one batch without gradients."""


class TextEncoder(nn.Module):
    """A transformer from texts to vectors of ``dim`` numbers.

    With ``precision=bf16`` matrix products are in bfloat16 (autocast); parameters and results are float32.
    """

    def __init__(self, model: PreTrainedModel, pooling: Pooling = "mean", precision: Precision = "fp32") -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.precision = precision
        self.dim: int = model.config.hidden_size
        kind = model.config.model_type
        self.packs = kind in _PACKABLE
        self.first_position = model.config.pad_token_id + 1 if kind in AFTER_PADDING else 0
        self.typed = getattr(model.config, "type_vocab_size", 0) > 1
        if hasattr(model, "pooler"):
            model.pooler = None  # type: ignore[assignment]  # no gradient would reach it
        if self.packs:
            model.set_attn_implementation(ATTENTION)

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Compute in float32 in the block, as the registered model does: for vectors and scores that it comes with."""
        before = self.precision
        self.precision = "fp32"
        try:
            yield
        finally:
            self.precision = before

    def forward(self, batch: Packed) -> torch.Tensor:
        """One vector per text, (n, dim) float32, in the order of the packed rows.

        A text without tokens has the zero vector (E-S4).
        """
        vectors = pool(self.hidden(batch), batch.offsets, self.pooling)
        return torch.empty_like(vectors).index_copy(0, batch.order, vectors)

    def hidden(self, batch: Packed) -> torch.Tensor:
        """Vectors of the last layer for each token, (T, dim) float32, in packed order."""
        if not batch.groups:
            # An empty batch still gives every parameter a gradient, for which the other ranks wait.
            return torch.stack([parameter.sum() * 0 for parameter in self.parameters()]).sum().expand(0, self.dim)
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return (self._packed(batch) if self.packs else self._padded(batch)).float()

    def _packed(self, batch: Packed) -> torch.Tensor:
        positions = batch.positions + self.first_position
        inputs = {"input_ids": batch.ids, "position_ids": positions, **self._types(batch.types)}
        hidden: torch.Tensor = self.model(**inputs, groups=batch.groups).last_hidden_state
        return hidden[0, : batch.size]

    def _padded(self, batch: Packed) -> torch.Tensor:
        """Fallback for models without packed batches: one padded batch per group."""
        blocks = []
        for group in batch.groups:
            places = slice(None) if group.places is None else group.places
            ids, types = (side[0, group.tokens][places].view(group.shape) for side in (batch.ids, batch.types))
            mask = torch.ones_like(ids) if group.mask is None else group.mask.view(group.shape).long()
            hidden = self.model(input_ids=ids, attention_mask=mask, **self._types(types)).last_hidden_state
            rows = hidden.flatten(0, 1)
            blocks.append(rows if group.real is None else rows.index_select(0, group.real))
        return torch.cat(blocks)

    def _types(self, types: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"token_type_ids": types} if self.typed else {}


def load_encoder(
    name: str,
    *,
    max_length: int,
    pooling: Pooling = "mean",
    precision: Precision = "fp32",
    dropout: float | None = None,
    texts: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Tokenizer, TextEncoder]:
    """Load an encoder with its tokenizer, on the CPU and in training mode.

    Args:
        name: ``minilm``, ``bert-base``, ``tiny``, the absolute path of a folder, or a name of the hub.
        max_length: maximal number of tokens of a text, with special tokens.
        dropout: dropout of hidden layers and attention; None keeps the encoder's own.
        texts: training texts, for the vocabulary of ``tiny``.
        seed: seed of the initial weights of ``tiny``.

    Raises:
        DataError: there is no such encoder, a file is missing or damaged, it has a decoder, no dropout to set, or fewer
            tokens than its tokenizer, or its longest text is shorter than ``max_length``.
    """
    if name == TINY:
        tokenizer = Tokenizer.of_words(texts, _TINY_VOCABULARY, max_length)
        model = _initial({**TINY_CONFIG, "model_type": "bert", "vocab_size": tokenizer.size}, seed, dropout)
    else:
        folder = folder_of(name)
        tokenizer = _tokenizer(folder, max_length)
        model = _pretrained(folder, dropout)
        _check_vocabulary(folder, tokenizer, model)
    encoder = TextEncoder(model, pooling, precision)
    check_max_length(name, max_length, _longest(model))
    return tokenizer, encoder.train()


def encoder_of(
    params: EncoderParams, runtime: Runtime, texts: Callable[[], Sequence[str]]
) -> tuple[Tokenizer, TextEncoder]:
    """:func:`load_encoder` by a workload's parameters. ``texts`` gives the training texts, which ``tiny`` reads."""
    return load_encoder(
        params.encoder, max_length=params.max_length, pooling=required(params.pooling), precision=runtime.precision,
        dropout=params.dropout, texts=texts() if params.encoder == TINY else (), seed=runtime.seed,
    )  # fmt: skip


def scoring_head(dim: int, seed: int) -> nn.Linear:
    """The head of a cross-encoder: a linear function of a pooled vector, with initial weights as in BERT."""
    with torch.random.fork_rng(devices=()), torch.no_grad():
        head = nn.Linear(dim, 1)
        head.weight.normal_(0, 0.02, generator=generator(seed, "head"))
        head.bias.zero_()
    return head


def _longest(model: PreTrainedModel) -> int | None:
    """The longest text in tokens; None without a limit. Some models number positions from behind the padding's id."""
    limit = getattr(model.config, "max_position_embeddings", -1)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limit -= module.padding_idx + 1
    return limit if limit > 0 else None


def _tokenizer(folder: Path, max_length: int) -> Tokenizer:
    file = folder / "tokenizer.json"
    try:
        return Tokenizer(file.read_text(encoding="utf-8"), max_length)
    except ValueError as error:
        raise DataError("the tokenizer cannot be read", file=file, got=str(error)) from None


def _pretrained(folder: Path, dropout: float | None) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModel

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
        if getattr(config, "is_encoder_decoder", False):
            raise DataError(
                "the model has a decoder too", file=folder, got=f"model type {config.model_type}",
                expected="an encoder alone, such as BERT",
            )  # fmt: skip
        _set_dropout(folder, config, dropout)
        with _quiet():
            model: PreTrainedModel = AutoModel.from_pretrained(
                folder, config=config, dtype=torch.float32, use_safetensors=True, **local
            )
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError("the encoder cannot be loaded", file=folder, got=str(error).splitlines()[0]) from error
    return model


def _check_vocabulary(folder: Path, tokenizer: Tokenizer, model: PreTrainedModel) -> None:
    rows = len(cast("torch.Tensor", model.get_input_embeddings().weight))
    if tokenizer.highest >= rows:
        raise DataError(
            "the tokenizer knows tokens that the encoder does not", file=folder, got=f"a token {tokenizer.highest}",
            expected=f"tokens 0 to {rows - 1}", fix="Save the tokenizer and the model that belong together",
        )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bar for files on the disk."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _initial(config: dict[str, Any], seed: int, dropout: float | None) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModel

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive(seed, "init"))
        settings = AutoConfig.for_model(**config)
        _set_dropout(None, settings, dropout)
        model: PreTrainedModel = AutoModel.from_config(settings)  # type: ignore[no-untyped-call]
    return model


def _set_dropout(folder: Path | None, config: PretrainedConfig, dropout: float | None) -> None:
    """Set every dropout of :data:`_DROPOUTS` that the model has; None keeps them."""
    if dropout is None:
        return
    own = [name for name in _DROPOUTS if hasattr(config, name)]
    if not own:
        got = f"dropout={dropout:g} for model type {config.model_type}"
        fix = "Leave out dropout"
        raise DataError("the encoder has no dropout to set", file=folder, got=got, fix=fix)
    for name in own:
        setattr(config, name, dropout)


@torch.no_grad()
def encode(encoder: TextEncoder, tokens: Tokens) -> torch.Tensor:
    """Encode any number of texts: (n, dim) float32, on the encoder's device, without dropout.

    Texts of similar length are encoded together.
    """
    device = next(encoder.parameters()).device
    vectors = torch.empty(len(tokens), encoder.dim, device=device)
    order = np.argsort(tokens.lengths, kind="stable")
    read = np.cumsum(tokens.lengths[order]) // _AT_ONCE.get(device.type, _AT_ONCE["cpu"])
    training = encoder.training
    encoder.eval()
    try:
        for rows in np.split(order, np.flatnonzero(np.diff(read)) + 1):
            vectors[torch.from_numpy(rows).to(device)] = encoder(pack(tokens.take(rows), device))
    finally:
        encoder.train(training)
    return vectors
