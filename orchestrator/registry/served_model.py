"""A registered model as a server holds it: the version that a reference names now, and its answers to requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.errors import UserError, one_line
from orchestrator.registry import models as registry
from orchestrator.registry.serving_formats import BadRequest, row_wise
from orchestrator.storage.settings import Settings


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded version. ``together``: rows of several requests can be predicted in one call."""

    uri: str
    version: str
    model: Any
    together: bool


def current(settings: Settings, reference: str) -> str:
    """The URI of the version that the reference names now, with its number. Raises UserError."""
    name, at, alias = reference.removeprefix("models:/").partition("@")
    if not at:
        return registry.resolve(settings, reference)
    version = registry.alias_version(registry.client(settings), name, alias)
    if version is None:
        raise UserError(f"The model {name} has no alias {alias} any more")
    return f"models:/{name}/{version}"


def load(settings: Settings, uri: str) -> Served:
    """Load the version at a URI of :func:`current`, and let it predict its example. Raises what the model raises."""
    model = registry.load(settings, uri)
    example = model.input_example
    frame = example[0] if isinstance(example, tuple) else example
    together = isinstance(frame, pd.DataFrame) and row_wise(model.predict, frame)
    return Served(uri, uri.rpartition("/")[2], model, together)


def answers(served: Served, requests: Sequence[tuple[pd.DataFrame, Mapping[str, Any]]]) -> list[Any]:
    """The predictions of each request, or a :class:`BadRequest` in their place.

    Requests with equal columns and parameters are predicted in one call where the model's rows do not depend on each
    other; if that call fails, each by itself, so that one wrong row refuses its own request alone.
    """
    groups: dict[Any, list[int]] = {}
    for number, (frame, params) in enumerate(requests):
        alike = (tuple(frame.columns), json.dumps(dict(params), sort_keys=True, default=str))
        groups.setdefault(alike if served.together else number, []).append(number)
    outputs: list[Any] = [None] * len(requests)
    for numbers in groups.values():
        frames = [requests[number][0] for number in numbers]
        params = requests[numbers[0]][1]
        output = _predicted(served, pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0], params)
        if isinstance(output, BadRequest) or (len(frames) > 1 and len(output) != sum(map(len, frames))):
            for number, frame in zip(numbers, frames):
                outputs[number] = output if len(frames) == 1 else _predicted(served, frame, params)
            continue
        start = 0
        for number, frame in zip(numbers, frames):
            end = start + len(frame) if len(frames) > 1 else len(output)
            outputs[number] = output[start:end]
            start = end
    return outputs


def _predicted(served: Served, frame: pd.DataFrame, params: Mapping[str, Any]) -> Any:
    try:
        return served.model.predict(frame, params=dict(params) or None)
    except Exception as error:  # a model's code can raise anything
        return BadRequest(f"{type(error).__name__}: {one_line(error)}")
