"""A registered model as a server holds it: the version that a reference names now, and its answers to requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException

from orchestrator.errors import UserError, one_line
from orchestrator.registry import models as registry
from orchestrator.registry import versions
from orchestrator.registry.prediction import check_params, reason
from orchestrator.registry.serving_formats import BadRequest, Batching, answer_lengths, batching
from orchestrator.registry.tables import columns_of, typed
from orchestrator.storage.settings import Settings


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded version, how rows of several requests can be predicted in one call, and its signature's parts.

    ``untried``: columns of the signature that the example, by which ``batching`` was tested, does not have.
    """

    uri: str
    version: str
    model: Any
    batching: Batching
    columns: Sequence[Any] | None = None
    params: Any = None
    untried: frozenset[str] = frozenset()


def current(settings: Settings, reference: str) -> str:
    """The URI of the version that the reference names now, with its number. Raises UserError."""
    name, at, alias = reference.removeprefix("models:/").partition("@")
    if not at:
        return versions.resolve(settings, reference)
    version = registry.alias_version(registry.client(settings), name, alias)
    if version is None:
        raise UserError(f"The model {name} has no alias {alias} any more")
    return f"models:/{name}/{version}"


def load(settings: Settings, uri: str) -> Served:
    """Load the version at a URI of :func:`current`, and let it predict its example. Raises what the model raises."""
    model = registry.load(settings, uri)
    example = model.input_example
    frame = example[0] if isinstance(example, tuple) else example
    how = batching(model.predict, frame) if isinstance(frame, pd.DataFrame) else "none"
    signature = model.metadata.signature
    columns = columns_of(signature and signature.inputs)
    tried = frame.columns if isinstance(frame, pd.DataFrame) else ()
    untried = frozenset(column.name for column in columns or ()).difference(tried)
    return Served(uri, uri.rpartition("/")[2], model, how, columns, signature and signature.params, untried)


def answers(served: Served, requests: Sequence[tuple[pd.DataFrame, Mapping[str, Any]]]) -> list[Any]:
    """The predictions of each request, or a :class:`BadRequest` in their place.

    Requests with equal columns, types and parameters are predicted in one call where the model's rows do not depend on
    each other, and equal ones once; if that call fails, each by itself, so that one wrong row refuses its own request
    alone.
    """
    if served.batching == "none" or len(requests) == 1:
        return [_predicted(served, frame, params) for frame, params in requests]
    groups: dict[Any, list[int]] = {}
    first: dict[Any, int] = {}
    equal = []  # the first request with the same rows
    for number, (frame, params) in enumerate(requests):
        types = tuple(map(str, frame.dtypes))  # joined, integers and fractions of one column would lose digits
        alike = (repr(list(frame.columns)), types, json.dumps(dict(params), sort_keys=True, default=str))
        rows = repr([frame.iloc[:, column].tolist() for column in range(frame.shape[1])])
        same = first.setdefault((alike, rows), number)
        equal.append(same)
        if same == number:
            groups.setdefault(alike, []).append(number)
    outputs: list[Any] = [None] * len(requests)
    for numbers in groups.values():
        frames = [requests[number][0] for number in numbers]
        params = requests[numbers[0]][1]
        parts = None
        if served.untried.isdisjoint(map(str, frames[0].columns)):
            inputs = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
            parts = _parts(served, frames, inputs, _predicted(served, inputs, params))
        if parts is None:
            parts = [_predicted(served, frame, params) for frame in frames]
        for number, part in zip(numbers, parts):
            outputs[number] = part
    return [outputs[number] for number in equal]


def _parts(served: Served, frames: Sequence[pd.DataFrame], inputs: pd.DataFrame, output: Any) -> list[Any] | None:
    """The part of the output that answers each frame; None where that is not known."""
    if len(frames) == 1:
        return [output]
    if isinstance(output, BadRequest):
        return None
    lengths = [1] * len(output) if served.batching == "rows" else answer_lengths(inputs, output)
    if lengths is None or len(lengths) != len(inputs):
        return None
    ends = np.cumsum([0, *lengths])
    rows = np.cumsum([0, *map(len, frames)])
    return [output[ends[begin] : ends[end]] for begin, end in pairwise(rows)]


def _predicted(served: Served, frame: pd.DataFrame, params: Mapping[str, Any]) -> Any:
    """Predict, after a conversion to the signature's types: JSON writes 2 for 2.0, and bytes and times as text."""
    try:
        rows = frame if served.columns is None else typed(frame, served.columns, "the request", 0)
        given = check_params(served.uri.removeprefix("models:/"), served.params, params)
        return served.model.predict(rows, params=given or None) if len(rows) else []
    except UserError as error:
        return BadRequest(str(error))
    except MlflowException as error:
        return BadRequest(reason(error))
    except ValueError as error:
        return BadRequest(f"ValueError: {reason(error)}")
    except Exception as error:  # a model's code can raise anything
        return BadRequest(f"{type(error).__name__}: {one_line(error)}")
