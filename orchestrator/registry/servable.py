"""``servable.json``: what a run exports for the registry in addition to weights. Bytes are written as base64."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from workloads.contract import Servable

FILE = "servable.json"

PREDICTOR = "predictor.py"
"""The model's code. A model that cannot be served has none."""

WEIGHTS = "weights.safetensors"
TRAINING = "training.safetensors"
CONFIG = "config.json"

DATA_FILES = (WEIGHTS, TRAINING, CONFIG, FILE)
"""The files of an exported model other than its source files."""

_BYTES = "base64"


def write(servable: Servable, folder: Path) -> None:
    """Write the example's columns and those that are not in it, parameters, the requirements and the tags."""
    example, alternatives, optional = (
        {name: column.tolist() for name, column in columns.items()}
        for columns in (servable.example, servable.alternatives, servable.optional)
    )
    meta = {
        "example": example, "params": dict(servable.params), "requirements": list(servable.requirements),
        "tags": dict(servable.tags), "alternatives": alternatives, "optional": optional,
    }  # fmt: skip
    (folder / FILE).write_text(json.dumps(meta, default=_encoded))


def read(folder: Path) -> dict[str, Any]:
    """Read the output of :func:`write`: ``example, params, requirements, tags, alternatives, optional``."""
    meta: dict[str, Any] = json.loads((folder / FILE).read_text(), object_hook=_decoded)
    return {"tags": {}, "alternatives": {}, "optional": {}, **meta}  # models exported by earlier versions have fewer


def _encoded(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"an example holds plain values and bytes, not {type(value).__name__}")
    return {_BYTES: base64.b64encode(value).decode()}


def _decoded(value: dict[str, Any]) -> Any:
    return base64.b64decode(value[_BYTES]) if value.keys() == {_BYTES} else value
