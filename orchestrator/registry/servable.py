"""``servable.json``: what beside its weights a run exports for the registry. JSON has no bytes, so these are base64."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from workloads.contract import Servable

FILE = "servable.json"

DATA_FILES = ("weights.safetensors", "config.json", FILE)
"""What an exported model holds beside its source files."""

_BYTES = "base64"


def write(servable: Servable, folder: Path) -> None:
    """Write the example's columns, the parameters of ``predict``, the requirements and the tags."""
    example = {name: column.tolist() for name, column in servable.example.items()}
    meta = {
        "example": example, "params": dict(servable.params), "requirements": list(servable.requirements),
        "tags": dict(servable.tags),
    }  # fmt: skip
    (folder / FILE).write_text(json.dumps(meta, default=_encoded))


def read(folder: Path) -> dict[str, Any]:
    """What :func:`write` wrote: ``example, params, requirements, tags``."""
    found: dict[str, Any] = json.loads((folder / FILE).read_text(), object_hook=_decoded)
    return {"tags": {}, **found}  # of a model that was exported before there were any


def _encoded(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"an example holds plain values and bytes, not {type(value).__name__}")
    return {_BYTES: base64.b64encode(value).decode()}


def _decoded(found: dict[str, Any]) -> Any:
    return base64.b64decode(found[_BYTES]) if found.keys() == {_BYTES} else found
