"""The k of every metric at k. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from workloads.common_params import comma_separated

CUTOFFS = (5, 10, 20)
"""The default."""


def _ascending(cutoffs: tuple[int, ...]) -> tuple[int, ...]:
    """In ascending order, so that the same cutoffs are the same value. Raises ValueError if one is given twice."""
    if len(set(cutoffs)) < len(cutoffs):
        raise ValueError("a cutoff is given twice. Give each once")
    return tuple(sorted(cutoffs))


def _text(cutoffs: Sequence[int]) -> str:
    """As on the command line, ``10,50,100``."""
    return ",".join(map(str, cutoffs))


Cutoffs: TypeAlias = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1000)], ...],
    Field(min_length=1, max_length=16),
    BeforeValidator(comma_separated),
    AfterValidator(_ascending),
    PlainSerializer(_text, when_used="json"),
]


def check_objectives(metrics: Sequence[str], cutoffs: Sequence[int]) -> None:
    """Check that each of ``metrics`` that is one at k is at one of the cutoffs.

    Raises:
        ValueError: validation does not have the metric; the message names one that it has.
    """
    for metric in metrics:
        name, at, k = metric.rpartition("_at_")
        if at and k not in map(str, cutoffs):
            fix = f"Set objective={name}_at_{cutoffs[-1]}"
            if k.isdecimal():
                fix += f", or add {k} to cutoffs"
            raise ValueError(f"validation has no {metric} with cutoffs={_text(cutoffs)}. {fix}")
