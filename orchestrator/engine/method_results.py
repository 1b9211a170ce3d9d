"""Checks of what a workload's methods return, and of how they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.config.objectives import Unreported
from orchestrator.errors import FAILED, one_line
from workloads.contract import Evaluation, Metrics, Servable, State, Workload


class NoResult(Unreported):
    """A workload's method returned something else than the contract requires. Every trial would fail with it."""


def named(split: str, workload: Workload, method: str, result: Metrics | Evaluation) -> dict[str, float]:
    """The metrics of a method's result under their full names. Raises :class:`NoResult`."""
    metrics = result.metrics if isinstance(result, Evaluation) else result
    try:
        if isinstance(metrics, Mapping) and (method != "evaluate" or isinstance(result, Evaluation)):
            values = {f"{split}/{name}": float(value) for name, value in metrics.items()}
            if isinstance(result, Evaluation):
                _check_tables(workload, method, result)
            return values
    except (TypeError, ValueError):
        pass  # a value is not a number
    kinds = {"train_epoch": "a mapping of names to numbers, or an Evaluation", "evaluate": "an Evaluation of numbers"}
    raise NoResult(
        f"{_source(workload, method)} has returned no result",
        got=" ".join(repr(result).split())[:200], allowed=kinds[method],
    )  # fmt: skip


def _check_tables(workload: Workload, method: str, result: Evaluation) -> None:
    """Raise :class:`NoResult` for units or tables that cannot be stored: they are written when training has ended."""
    import numpy as np  # the start of a command is light

    tables = result.tables
    parts = [("units", result.units), *(tables.items() if isinstance(tables, Mapping) else [("tables", tables)])]
    for part, columns in parts:
        of_units = columns is result.units
        if not hasattr(columns, "items"):  # a DataFrame has it
            got = type(columns).__name__
        elif of_units and not all(isinstance(column, np.ndarray) for _, column in columns.items()):
            got = ", ".join(f"{name}: {type(column).__name__}" for name, column in columns.items())
        else:
            # A list is stored whatever its elements are, lists included: only its length counts.
            shapes = {
                name: (len(column),) if isinstance(column, list | tuple) else np.shape(column)
                for name, column in columns.items()
            }
            alike = len(set(shapes.values())) == 1 and len(next(iter(shapes.values()))) == 1
            if not shapes or (alike and ("id" in shapes or not of_units)):
                continue
            got = ", ".join(f"{name} of {' x '.join(map(str, shape))}" for name, shape in shapes.items())
        what = "units that are no table" if of_units else f"a table {part!r} that cannot be stored"
        raise NoResult(
            f"{_source(workload, method)} has returned {what}",
            got=got, allowed="NumPy arrays of one length" + ", one of them named id" * of_units,
        )  # fmt: skip


def _source(workload: Workload, method: str) -> str:
    return f"{type(workload).__module__}.{type(workload).__qualname__}.{method}"


def state_of(workload: Workload) -> State:
    """A workload's state. Raises :class:`NoResult` for a method that returns none."""
    state = workload.state_dict()
    if state is None:
        raise NoResult(f"{_source(workload, 'state_dict')} has returned no state", got="None", allowed="a dict")
    return state


def servable(workload: Workload) -> Servable:
    """What a workload's method of this name returns. Raises :class:`NoResult` for anything else.

    Its code is FAILED: training is over, and a resume with a repaired method goes on from there.
    """
    served = workload.servable()
    allowed = "a workloads.contract.Servable"
    if not isinstance(served, Servable):
        got = " ".join(repr(served).split())[:200]
    elif wrong := list(_wrong_parts(served)):
        got = ", ".join(wrong)
        allowed += ", its predictor a Path, its weights dense tensors, its example NumPy arrays"
    else:
        return served
    raise NoResult(
        f"{_source(workload, 'servable')} has returned no Servable",
        got=got, allowed=allowed, code=FAILED,
    )  # fmt: skip


def _wrong_parts(served: Servable) -> Iterator[str]:
    """The parts that are of another type than the contract requires."""
    import numpy as np
    import torch

    if not isinstance(served.predictor, Path | None):
        yield f"predictor: {type(served.predictor).__name__}"
    parts = {name: getattr(served, name) for name in ("example", "weights", "config", "params")}
    for name, part in parts.items():
        if not isinstance(part, Mapping):
            yield f"{name}: {type(part).__name__}"
    for part, kind in (("example", np.ndarray), ("weights", torch.Tensor)):
        for name, value in parts[part].items() if isinstance(parts[part], Mapping) else ():
            if not isinstance(value, kind):
                yield f"{part} {name}: {type(value).__name__}"
            elif isinstance(value, torch.Tensor) and value.layout != torch.strided:
                yield f"{part} {name}: {value.layout}"


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise RuntimeError in the place of a workload's SystemExit, which would end the command with its status.

    An exit by which Ray ends a worker process is passed on. A StopIteration, which a generator replaces by an error
    without the workload's line, is named with that line. An error whose ``__str__`` raises is named by its class: Ray,
    and what describes an error, need its text.
    """
    try:
        yield
    except SystemExit as error:
        if hasattr(error, "ray_terminate_msg"):
            raise
        status = "" if error.code is None else repr(error.code)
        named = RuntimeError(f"the workload called sys.exit({status})")
        raise named.with_traceback(error.__traceback__) from None  # a failure is reported with its innermost line
    except Exception as error:
        try:
            ended = error.__cause__ if str(error) == "generator raised StopIteration" else error
        except Exception:
            named = RuntimeError(f"the workload raised {type(error).__name__}: {one_line(error)}")
            raise named.with_traceback(error.__traceback__) from None
        if not isinstance(ended, StopIteration):
            raise
        named = RuntimeError("the workload raised StopIteration: next() of an iterator that has ended")
        raise named.with_traceback(ended.__traceback__) from None
