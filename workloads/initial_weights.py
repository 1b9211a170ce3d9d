"""Copy the weights of a trained model into a new one, and name those that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

SHOWN = 3
"""Weights that a message names."""


def copy_weights(module: nn.Module, weights: Mapping[str, torch.Tensor], prefix: str = "") -> None:
    """Copy the weights whose names begin with ``prefix`` into the parameters and buffers of ``module``.

    Raises:
        ValueError: they are not exactly those of the module; the message names the ones that differ.
    """
    given = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    own = module.state_dict()
    check_shapes({name: value.shape for name, value in own.items()}, {n: value.shape for n, value in given.items()})
    module.load_state_dict(given)


def check_shapes(own: Mapping[str, Iterable[int]], given: Mapping[str, Iterable[int]]) -> None:
    """Raise ValueError if the shapes of the weights of two models differ."""
    sides = {name: (_shape(given.get(name)), _shape(own.get(name))) for name in {**own, **given}}
    wrong = [f"{name} is {there} there and {here} here" for name, (there, here) in sides.items() if there != here]
    if wrong:
        more = f" ({len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
        raise ValueError(f"the weights do not fit: {'; '.join(wrong[:SHOWN])}{more}")


def check_tokenizer(own: str, given: str | None, encoder: str) -> None:
    """Raise ValueError if the models read texts by different tokenizers, given as the texts of a tokenizer.json."""
    if own != given:
        raise ValueError(f"the weights do not fit: their tokenizer is not that of encoder {encoder!r} with this data")


def bytes_of(text: str) -> torch.Tensor:
    """A text as the tensor of bytes that a Servable stores."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def text_of(tensor: torch.Tensor | None) -> str | None:
    """The text of a tensor of :func:`bytes_of`."""
    return None if tensor is None else bytes(tensor.numpy().tobytes()).decode()


def _shape(shape: Iterable[int] | None) -> tuple[int, ...] | str:
    return "missing" if shape is None else tuple(shape)
