"""Configuration of promotion gates: the conditions on a version before an alias may point at it.

A YAML file holds gates by model and alias. Only the most specific block applies::

    default: {size_mb: 500}               # models without their own block
    rec-ml-100k:
      default: {better: true}             # aliases of this model without their own block
      champion:
        better: true                      # or the name of a metric; true: the objective
        guard: {recall_at_20: 0.005}      # must not be worse by more than this
        latency_ms: 50
        size_mb: 200
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from orchestrator.config.parsing import Document, read_yaml, validate
from orchestrator.errors import UserError

DEFAULT = "default"
_WORDS = {"yes": True, "on": True, "no": False, "off": False}

FILE = "gates.yaml"
"""The default file, in the home."""


class Gates(BaseModel):
    """The gates of one alias. They compare values on the validation split: the test split must not affect choices."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    better: bool | str = Field(False, description="The metric to be better in; true: the run's objective.")
    margin: float = Field(0.0, ge=0, description="How much better, in the metric's unit.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of better and guard, by a paired test over units.")
    guard: dict[str, float] = Field({}, max_length=20, description="Metric: tolerance. Not worse by more than that.")
    minimize: tuple[str, ...] = Field((), description="Metrics where less is better, in addition to objectives.")
    latency_ms: float | None = Field(None, gt=0, description="Median milliseconds of a call with the input example.")
    size_mb: float | None = Field(None, gt=0, description="Megabytes of all the model's files.")
    signature: Literal["compatible", "any"] = Field(
        "compatible", description="compatible: current callers of the alias need no change."
    )

    @field_validator("better", mode="before")
    @classmethod
    def _on_validation(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lower() in _WORDS:  # YAML 1.1 has these for true and false
            return _WORDS[value.lower()]
        return _metric(value) if isinstance(value, str) else value

    @field_validator("guard")
    @classmethod
    def _guards(cls, values: dict[str, float]) -> dict[str, float]:
        if negative := [name for name, tolerance in values.items() if tolerance < 0]:
            raise ValueError(f"tolerances from 0, also for {negative[0]}")
        return {_metric(name): tolerance for name, tolerance in values.items()}

    @field_validator("minimize")
    @classmethod
    def _minimized(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_metric, names))

    @property
    def compares(self) -> bool:
        """Whether a gate needs the values of the runs."""
        return bool(self.better or self.guard)


def read(file: Path | None, home: Path, model: str, alias: str) -> Gates:
    """Read the gates of ``model``'s ``alias`` from ``file``, by default ``gates.yaml`` in the home.

    All blocks of the file are checked, so that a mistake shows at the first promotion. Raises UserError with the
    nearest name for an unknown gate.
    """
    if file is None and not (home / FILE).exists():
        return Gates()
    file = file or home / FILE
    document = read_yaml(file)
    blocks = {path: _gates(document, path, file) for path in _paths(document, file)}
    for path in ((model, alias), (model, DEFAULT), (DEFAULT,)):
        if path in blocks:
            return blocks[path]
    return Gates()


def _paths(document: Document, file: Path) -> list[tuple[str, ...]]:
    """The paths of the blocks: ``(default,)`` and every ``(model, alias)``."""
    paths: list[tuple[str, ...]] = []
    for name, block in document.values.items():
        if name == DEFAULT:
            paths.append((DEFAULT,))
            continue
        if not isinstance(block, dict):
            raise _no_mapping(file, document.lines[name], name, "aliases, each with its gates")
        paths.extend((name, alias) for alias in block)
    return paths


def _gates(document: Document, path: tuple[str, ...], file: Path) -> Gates:
    values: Any = document.values
    for name in path:
        values = values[name]
    key = ".".join(path)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise _no_mapping(file, document.lines[key], key, "gate: value lines")
    places = {str(name): f"line {document.lines[f'{key}.{name}']}" for name in values}
    try:
        return validate(Gates, values, "gate", places)
    except UserError as error:
        raise UserError(f"{file}, {key}: {error.what}", got=error.got, allowed=error.allowed, fix=error.fix) from None


def _no_mapping(file: Path, line: int, name: str, allowed: str) -> UserError:
    return UserError(f"{file}, line {line}: {name} must be a mapping", allowed=allowed)


def _metric(name: str) -> str:
    split, _, metric = name.partition("/")
    if split == "test":
        raise ValueError(f"a metric of the validation split, such as {metric}: the test split must not affect choices")
    return metric if split == "validation" else name
