"""Checkpoints: a folder with ``tensors.safetensors`` and ``checkpoint.json``. No pickle.

The JSON is written last. It contains the size and digest of the tensors and a digest of itself. A checkpoint without a
matching JSON is invalid. ``state`` consists of nested dicts and lists of tensors and JSON scalars. In the JSON, tensors
are replaced by references into the tensor file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from orchestrator.errors import UserError
from orchestrator.storage import disk
from orchestrator.storage.names import HALF_WRITTEN

if TYPE_CHECKING:
    import torch  # imported where it is used, so that a sweep's driver starts without it

FORMAT = 1
TENSORS, META = "tensors.safetensors", "checkpoint.json"
FIX = "Remove it to go on from the checkpoint before it, or start a new run"
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
"""Errors of reading well-formed JSON that is not a checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory. ``identity`` (workload, fingerprint) identifies its experiment."""

    identity: Mapping[str, str]
    epoch: int
    state: dict[str, Any]


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write atomically to ``folder``. Raises UserError (exit 3) when it cannot be written."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with disk.writing(folder.parent):
            _write(partial, checkpoint)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)  # free the disk space
        raise
    return folder


def _write(partial: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save_file

    partial.mkdir(parents=True)
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _pack(checkpoint.state, tensors)
    save_file(tensors, partial / TENSORS)
    meta = {
        "format": FORMAT,
        "identity": dict(checkpoint.identity),
        "epoch": checkpoint.epoch,
        "tensors": {"bytes": (partial / TENSORS).stat().st_size, "sha256": _digest(partial / TENSORS)},
        "state": skeleton,
    }
    (partial / META).write_text(json.dumps(meta | {"sha256": _seal(meta)}))


def read(folder: Path, identity: Mapping[str, str] | None = None) -> Checkpoint:
    """Verify and read a checkpoint, its tensors on the CPU.

    Raises UserError when it is missing, truncated, damaged, of a newer format, or of another workload or
    configuration than ``identity`` names.
    """
    from safetensors.torch import load_file

    meta = _verify(folder)
    if identity is not None:
        for key, wanted in identity.items():
            if meta["identity"].get(key) != wanted:
                raise UserError(
                    f"The checkpoint {folder} belongs to another {key}",
                    got=meta["identity"].get(key),
                    allowed=wanted,
                    fix="Resume the run it was written by, or start a new run",
                )
    try:
        return Checkpoint(meta["identity"], meta["epoch"], _unpack(meta["state"], load_file(folder / TENSORS)))
    except (SafetensorError, *MALFORMED):
        raise UserError(f"The checkpoint {folder} is damaged: it was not written as one", fix=FIX) from None


def latest(folder: Path) -> Path | None:
    """The newest valid checkpoint in ``folder``, or None when there is none.

    A damaged one is skipped. Raises UserError when all are damaged.
    """
    damage: UserError | None = None
    for candidate in sorted(_all(folder), key=lambda path: path.name, reverse=True):
        try:
            _verify(candidate)
        except UserError as error:
            damage = damage or error
        else:
            return candidate
    if damage is not None:
        raise damage
    return None


def keep(folder: Path, newest: int = 2) -> None:
    """Remove all but the newest checkpoints: one to resume from, one in case it is damaged."""
    for old in sorted(_all(folder), key=lambda path: path.name)[:-newest]:
        shutil.rmtree(old, ignore_errors=True)
    for half in folder.glob(HALF_WRITTEN):  # left by killed writers
        shutil.rmtree(half, ignore_errors=True)


def name(order: int) -> str:
    """Folder name of the checkpoint number ``order``. Names sort in the order of writing."""
    return f"checkpoint-{order:08d}"


def _all(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("checkpoint-*") if path.is_dir()) if folder.is_dir() else iter(())


def _verify(folder: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text())
        form = meta["format"]
        seal = meta.pop("sha256", None)
    except FileNotFoundError:
        raise UserError(f"The checkpoint {folder} is incomplete: it has no {META}", fix=FIX) from None
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
        raise UserError(f"The checkpoint {folder} is damaged: its {META} cannot be read", fix=FIX) from None
    if form != FORMAT:
        raise UserError(
            f"The checkpoint {folder} has another format", got=form, allowed=FORMAT, fix="Use the version that wrote it"
        )
    if seal != _seal(meta):
        raise UserError(f"The checkpoint {folder} is damaged: the content of {META} changed", fix=FIX)
    try:
        size = meta["tensors"]["bytes"]
        digest = meta["tensors"]["sha256"]
    except MALFORMED:
        raise UserError(f"The checkpoint {folder} is damaged: {META} lacks what it needs", fix=FIX) from None
    file = folder / TENSORS
    got = file.stat().st_size if file.exists() else 0
    if got != size:
        raise UserError(f"The checkpoint {folder} is truncated", got=f"{got} bytes", allowed=f"{size} bytes", fix=FIX)
    if _digest(file) != digest:
        raise UserError(f"The checkpoint {folder} is damaged: the content of {TENSORS} changed", fix=FIX)
    return meta


def _seal(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pack(value: Any, tensors: dict[str, torch.Tensor], path: str = "") -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        name = f"{len(tensors)} {path}"  # the path is not unique: keys may contain a slash, or be 1 and "1"
        # A clone per tensor: safetensors refuses tensors that share memory, and tied weights do.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": name}
    if isinstance(value, Mapping):
        # Optimiser states have integer keys, which JSON objects cannot; pairs keep the type.
        return {"$items": [[k, _pack(v, tensors, f"{path}/{k}")] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"state_dict holds a {type(value).__name__} at {path or '/'}; allowed: tensors and JSON scalars")


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {key: _unpack(item, tensors) for key, item in value["$items"]}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value
