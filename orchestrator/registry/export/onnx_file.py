"""Neural encoders as ONNX, compared with the model by onnxruntime."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.errors import RunFailed, UserError, one_line
from orchestrator.registry.export.model import Model, Written
from orchestrator.registry.export.text import is_similarity, limits_of, text_encoder

TOLERANCE = 1e-4
"""Largest difference of a value of the exported model from that of the model."""

SIZES = (1, 2, 3, 5)
"""Batches of the comparison."""

FILE = "model.onnx"


class TextVector(nn.Module):
    """The vector of each text, (n, d), or with a head its score, (n,); pooled over real tokens."""

    def __init__(self, model: nn.Module, pooling: str, typed: bool, head: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.typed = typed
        self.head = head

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *types: torch.Tensor) -> torch.Tensor:
        typed = {"token_type_ids": types[0]} if self.typed else {}
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, **typed).last_hidden_state
        real = attention_mask.unsqueeze(2).to(hidden.dtype)
        if self.pooling == "cls":
            vector = hidden[:, 0]
        elif self.pooling == "max":
            vector = (hidden + (real - 1) * 1e9).amax(1)
        else:
            vector = (hidden * real).sum(1) / real.sum(1)
        vector = torch.where(real.amax(1) > 0, vector, 0.0)  # as the model has it; a mean of no tokens is no number
        scores: torch.Tensor = vector if self.head is None else self.head(vector).squeeze(1)
        return scores


class ImageVector(nn.Module):
    """The features (n, d) of images (n, 3, S, S), uint8."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, encoder: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.encoder((image.float() / 255 - self.mean) / self.std)
        return features


def onnx(model: Model, target: Path) -> Written:
    """Write ``model.onnx`` and what is needed to feed it. Raises UserError for an operation without an operator."""
    build = _images if model.version.workload == "simclr" else _texts
    return build(model, target)


def _texts(model: Model, target: Path) -> Written:
    encoder = text_encoder(model)
    encoder.model.set_attn_implementation("eager")  # fused attention has no operator of its own
    head: nn.Module | None = None
    if model.config.get("scoring") == "cross":
        linear = nn.Linear(encoder.dim, 1)
        linear.load_state_dict({name: torch.from_numpy(model.weights[f"head.{name}"]) for name in ("weight", "bias")})
        head = nn.Sequential(linear, nn.Sigmoid()) if is_similarity(model) else linear
    module = TextVector(encoder.model, encoder.pooling, encoder.typed, head).eval()
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if encoder.typed else [])]
    limit = int(model.config["max_length"])
    lengths = (max(2, length) for length in (limit, 7, limit // 2, 3))
    cases = [_tokens(encoder, size, length, len(names)) for size, length in zip(SIZES, lengths)]
    output = "vector" if head is None else "score"
    _convert(model, module, cases[-1], target, names, output, {0: "texts", 1: "tokens"})
    worst = _compare(model, module, cases, target, names)
    (target / "tokenizer.json").write_text(encoder.tokenizer.to_str(), "utf-8")
    (target / "config.json").write_text(json.dumps({"max_length": limit, "pooling": encoder.pooling, "inputs": names}))
    texts = '[("a query", "a document")]' if head is not None else '["a text"]'
    usage = (
        "import numpy as np, onnxruntime, tokenizers\n\n"
        'tokenizer = tokenizers.Tokenizer.from_file("FOLDER/tokenizer.json")\n'
        "tokenizer.enable_padding()\n"
        f"texts = tokenizer.encode_batch({texts})\n"
        'sides = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}\n'
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")\n'
        "names = [one.name for one in session.get_inputs()]\n"
        "inputs = {name: np.array([getattr(text, sides[name]) for text in texts]) for name in names}\n"
        "(values,) = session.run(None, inputs)"
    )
    return Written(usage, "onnx", [*limits_of(model), _difference(worst)], [_difference(worst)])


def _images(model: Model, target: Path) -> Written:
    from workloads.encoders.image import image_encoder

    config = model.config
    encoder = image_encoder(config["encoder"], config["stem"] or "cifar", seed=0, side=config.get("side", 32))
    own = {
        n.removeprefix("encoder."): torch.from_numpy(v) for n, v in model.weights.items() if n.startswith("encoder.")
    }
    encoder.layers.load_state_dict(own)
    module = ImageVector(encoder.to(memory_format=torch.contiguous_format), config["mean"], config["std"]).eval()
    size = int(config["size"])
    draw = np.random.default_rng(0)
    cases = [(torch.from_numpy(draw.integers(0, 256, (n, 3, size, size), dtype=np.uint8)),) for n in SIZES]
    _convert(model, module, cases[-1], target, ["image"], "embedding", {0: "images"})
    worst = _compare(model, module, cases, target, ["image"])
    usage = (
        "import numpy as np, onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")\n'
        f"images = np.zeros((1, 3, {size}, {size}), np.uint8)  # RGB\n"
        '(embeddings,) = session.run(None, {"image": images})'
    )
    limits = [f"Images are RGB, {size} x {size}, uint8, channels first.", _difference(worst)]
    return Written(usage, "onnx", limits, [_difference(worst)])


def _convert(
    model: Model,
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    target: Path,
    names: list[str],
    output: str,
    free: dict[int, str],
) -> None:
    """Write ``model.onnx``; the dimensions ``free`` of each input may have any size."""
    try:
        with torch.no_grad(), _quiet():
            torch.onnx.export(
                module, inputs, str(target / FILE), input_names=names, output_names=[output], dynamo=True,
                dynamic_shapes=_shapes(len(inputs), free), external_data=False, verbose=False,
            )  # fmt: skip
    except Exception as error:
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # type: ignore[assignment]
        raise UserError(
            f"The encoder of {model.version.name} cannot be written as ONNX, an operation has no operator there: "
            f"{type(cause).__name__}: {one_line(cause)}"
        ) from error


def _shapes(count: int, free: dict[int, str]) -> tuple[Any, ...]:
    dimensions = dict.fromkeys(free, torch.export.Dim.DYNAMIC)
    if "tokens" not in free.values():
        return (dimensions,)
    further = (tuple(dimensions for _ in range(count - 2)),) if count > 2 else ()
    return (dimensions, dimensions, *further)


def _compare(
    model: Model, module: nn.Module, cases: Sequence[tuple[torch.Tensor, ...]], target: Path, names: Sequence[str]
) -> float:
    """The largest difference between onnxruntime's values and the model's. Raises RunFailed above the tolerance."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(target / FILE), options, providers=["CPUExecutionProvider"])
    differences = []
    for inputs in cases:
        with torch.inference_mode():
            expected: NDArray[np.float32] = module(*inputs).numpy()
        (values,) = session.run(None, {name: value.numpy() for name, value in zip(names, inputs)})
        differences.append(np.abs(values - expected).max())
    worst = float(np.max(differences))
    if not worst <= TOLERANCE:  # NaN is more than any number
        raise RunFailed(
            f"The export of {model.version.name}",
            f"onnxruntime's values differ from the model's by up to {worst:.2g}, more than {TOLERANCE:g}",
        )
    return worst


def _tokens(encoder: Any, size: int, length: int, sides: int) -> tuple[torch.Tensor, ...]:
    """``size`` sequences of tokens, the first of ``length``, each further one shorter, where that is possible."""
    draw = np.random.default_rng(length)
    lengths = np.maximum(2, length - np.arange(size))
    ids = draw.integers(1, encoder.model.config.vocab_size, (size, length))
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    types = np.zeros_like(mask)
    return tuple(torch.from_numpy(side) for side in (np.where(mask, ids, 0), mask, types)[:sides])


def _difference(worst: float) -> str:
    return f"onnxruntime's values differ from the model's by at most {worst:.1g}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes."""
    names = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")
    before = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
