"""Copy, corrupt and compare states of workloads, for the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def through_plain_data(state: Any) -> Any:
    """The state as read back from a file. Raises TypeError for anything but tensors and JSON scalars."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {_json_scalar(key): through_plain_data(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [through_plain_data(value) for value in state]
    return _json_scalar(state)


def _json_scalar(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"the state holds a {type(value).__name__}: {value!r}")
    return value


def with_nan(state: Any) -> Any:
    """The state with NaN for every real number in a tensor."""
    if isinstance(state, torch.Tensor):
        return torch.full_like(state, torch.nan) if state.is_floating_point() else state
    if isinstance(state, Mapping):
        return {key: with_nan(value) for key, value in state.items()}
    return [with_nan(value) for value in state] if isinstance(state, list | tuple) else state


def assert_equal_states(first: Any, second: Any, path: str = "state") -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second), path
    elif isinstance(first, Mapping):
        assert first.keys() == second.keys(), path
        for key in first:
            assert_equal_states(first[key], second[key], f"{path}/{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), path
        for index, (one, other) in enumerate(zip(first, second)):
            assert_equal_states(one, other, f"{path}/{index}")
    else:
        assert first == second, path


def vectors_by_kind(state: Any) -> dict[str, torch.Tensor]:
    """The real numbers of a state as one vector per kind, such as ``encoder`` or ``optimizer/exp_avg``.

    Single tensors cannot be compared: one may consist of rounding errors only, such as the gradient of a bias that
    cancels in a softmax and, under Adam, that bias itself.
    """
    parts_by_kind: dict[str, list[torch.Tensor]] = {}

    def add(part: Any, path: tuple[str, ...]) -> None:
        if isinstance(part, torch.Tensor):
            if part.is_floating_point():
                family = path[0] if len(path) == 1 or "." in path[-1] else f"{path[0]}/{path[-1]}"
                parts_by_kind.setdefault(family, []).append(part.double().flatten())
        elif isinstance(part, Mapping | list | tuple):
            for name, value in part.items() if isinstance(part, Mapping) else enumerate(part):
                add(value, (*path, str(name)))

    add(state, ())
    return {family: torch.cat(parts) for family, parts in parts_by_kind.items()}
