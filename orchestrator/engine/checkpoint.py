"""Checkpoints: a folder with ``tensors.safetensors`` and ``checkpoint.json``. No pickle.

The JSON is written last. It contains the size and digest of each tensor file and a digest of itself. A checkpoint
without a matching JSON is invalid. ``state`` consists of nested dicts and lists of tensors and JSON scalars. In the
JSON, tensors are replaced by references into the tensor files.

What changes only at a new best epoch is in ``selected.safetensors`` where it is large: the checkpoints up to the next
best epoch are links to the same file. Format 1 had one tensor file; it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from orchestrator.engine import tensor_file
from orchestrator.errors import UserError
from orchestrator.storage import disk
from orchestrator.storage.names import HALF_WRITTEN

if TYPE_CHECKING:
    import torch  # imported where it is used, so that a sweep's driver starts without it

FORMAT = 2
READ = (1, 2)
"""Formats that are read."""

TENSORS, SELECTED, META = "tensors.safetensors", "selected.safetensors", "checkpoint.json"
OF_BEST_EPOCH = ("best", "units")
"""Entries of a state that change only at a new best epoch."""

SHARED_BYTES = 2**20
"""Size from which these are in a file of their own."""

FIX = "Remove it to go on from the checkpoint before it, or start a new run"
MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
"""Errors of reading JSON that is damaged or not a checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory. ``identity`` (workload, fingerprint) identifies its experiment.

    ``best_epoch`` is the same object as long as the entries :data:`OF_BEST_EPOCH` are.
    """

    identity: Mapping[str, str]
    epoch: int
    state: dict[str, Any]
    best_epoch: BestEpoch | None = None


@dataclass(slots=True)
class BestEpoch:
    """Where the entries of a best epoch were last written: ``folder``, and their file's inode, size and digest."""

    folder: Path | None = None
    inode: int = 0
    written: tensor_file.Written | None = None


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``folder`` completely or not at all, in place of an earlier one. Raises UserError (exit 3) if it cannot."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with disk.writing(folder.parent):
            _write(partial, checkpoint)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
            if checkpoint.best_epoch is not None:
                checkpoint.best_epoch.folder = folder
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # free the disk space
        raise
    return folder


def _write(partial: Path, checkpoint: Checkpoint) -> None:
    partial.mkdir(parents=True)
    tensors: dict[str, torch.Tensor] = {}
    selected: dict[str, torch.Tensor] = {}
    apart = {key: checkpoint.state[key] for key in OF_BEST_EPOCH if key in checkpoint.state}
    skeleton = take_tensors({key: value for key, value in checkpoint.state.items() if key not in apart}, tensors)
    skeleton["$items"] += take_tensors(apart, selected, f"/{SELECTED}")["$items"]
    if sum(tensor.nbytes for tensor in selected.values()) < SHARED_BYTES:
        tensors |= selected
        selected = {}
    files = {TENSORS: tensor_file.write(partial / TENSORS, tensors)}
    if selected:
        files[SELECTED] = _share(partial / SELECTED, selected, checkpoint.best_epoch)
    meta = {
        "format": FORMAT,
        "identity": dict(checkpoint.identity),
        "epoch": checkpoint.epoch,
        "files": {name: written._asdict() for name, written in files.items()},
        "state": skeleton,
    }
    (partial / META).write_text(json.dumps(meta | {"sha256": _seal(meta)}))


def _share(file: Path, tensors: Mapping[str, torch.Tensor], best_epoch: BestEpoch | None) -> tensor_file.Written:
    """Link the file that an earlier checkpoint of the same best epoch has, or write it."""
    if best_epoch and best_epoch.folder and best_epoch.written:
        with suppress(OSError):  # it is gone, or the file system has no links
            os.link(best_epoch.folder / SELECTED, file)
            if file.stat().st_ino == best_epoch.inode:
                return best_epoch.written
            file.unlink()
    written = tensor_file.write(file, tensors)
    if best_epoch:
        best_epoch.inode = file.stat().st_ino
        best_epoch.written = written
    return written


def read(folder: Path, identity: Mapping[str, str] | None = None) -> Checkpoint:
    """Verify and read a checkpoint, its tensors on the CPU.

    Raises UserError when it is missing, truncated, damaged, of a newer format, or of another workload or
    configuration than ``identity`` names.
    """
    from safetensors.torch import load_file

    meta, files = _verify(folder)
    if identity is not None:
        for key, wanted in identity.items():
            if meta["identity"].get(key) != wanted:
                raise UserError(
                    f"The checkpoint {folder} belongs to another {key}",
                    got=meta["identity"].get(key),
                    allowed=wanted,
                    fix="Resume the run it was written by, with the version that began it, or start a new run",
                )
    try:
        tensors = {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
        return Checkpoint(meta["identity"], meta["epoch"], put_tensors(meta["state"], tensors))
    except (SafetensorError, *MALFORMED):
        raise UserError(f"The checkpoint {folder} is damaged: it was not written as one", fix=FIX) from None


def progress(folder: Path) -> dict[str, Any]:
    """The progress that a checkpoint states, which is not verified. Its tensors are not read. Empty without it."""
    try:
        items = json.loads((folder / META).read_text())["state"]["$items"]
        return dict(put_tensors(dict(items)["progress"], {}))
    except (OSError, *MALFORMED):
        return {}


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
    """Remove all but the newest checkpoints: one to resume from, one in case it is damaged.

    Also removes what killed writers have left in ``folder``, where only one process writes at a time.
    """
    for old in sorted(_all(folder), key=lambda path: path.name)[:-newest]:
        shutil.rmtree(old, ignore_errors=True)
    for half in folder.glob(HALF_WRITTEN):
        if not half.name.endswith(f".{os.getpid()}.partial"):  # another thread may be writing the selection's state
            shutil.rmtree(half, ignore_errors=True)


def name(order: int) -> str:
    """Folder name of the checkpoint number ``order``. Names sort in the order of writing."""
    return f"checkpoint-{order:08d}"


def _all(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("checkpoint-*") if path.is_dir()) if folder.is_dir() else iter(())


def _verify(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The content of the JSON and the names of the tensor files. Raises UserError unless all are intact."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text())
        form = meta["format"]
        seal = meta.pop("sha256", None)
    except FileNotFoundError:
        raise UserError(f"The checkpoint {folder} is incomplete: it has no {META}", fix=FIX) from None
    except OSError as error:
        raise disk.unreadable(folder, "checkpoint", error) from None
    except MALFORMED:
        raise UserError(f"The checkpoint {folder} is damaged: its {META} cannot be read", fix=FIX) from None
    if form not in READ:
        allowed = " or ".join(map(str, READ))
        raise UserError(
            f"The checkpoint {folder} has another format",
            got=form,
            allowed=allowed,
            fix="Use the version that wrote it",
        )
    if seal != _seal(meta):
        raise UserError(f"The checkpoint {folder} is damaged: the content of {META} changed", fix=FIX)
    try:
        files = {TENSORS: meta["tensors"]} if form == 1 else meta["files"]
        expected = {name: tensor_file.Written(file["bytes"], file["sha256"]) for name, file in files.items()}
    except MALFORMED:
        raise UserError(f"The checkpoint {folder} is damaged: {META} lacks what it needs", fix=FIX) from None
    for name, written in expected.items():
        _verify_file(folder, folder / name, written)
    return meta, list(expected)


def _verify_file(folder: Path, file: Path, written: tensor_file.Written) -> None:
    """Raise UserError unless the file is as it was written. Within a process an unchanged file is read only once."""
    status = file.stat() if file.exists() else None
    got = status.st_size if status else 0
    if status is None or got != written.bytes:
        raise UserError(
            f"The checkpoint {folder} is truncated", got=f"{got} bytes", allowed=f"{written.bytes} bytes", fix=FIX
        )
    stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, written.sha256)
    if _VERIFIED.get(file) == stamp:
        return
    if _digest(file) != written.sha256:
        raise UserError(f"The checkpoint {folder} is damaged: the content of {file.name} changed", fix=FIX)
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
        _VERIFIED[file] = stamp


_VERIFIED: dict[Path, tuple[int, int, int, str]] = {}
"""Inode, times and digest of files that this process has verified."""

_SETTLED_NS = 2_000_000_000
"""Age from which on a file that changes again has another time."""


def _seal(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def take_tensors(value: Any, tensors: dict[str, torch.Tensor], path: str = "") -> Any:
    """The state ``value`` as JSON, with references to its tensors, which are added to ``tensors``."""
    import torch

    if isinstance(value, torch.Tensor):
        name = f"{len(tensors)} {path}"  # the path is not unique: keys may contain a slash, or be 1 and "1"
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not (key is None or isinstance(key, bool | int | float | str)):
                raise TypeError(f"state_dict has the key {key!r} at {path or '/'}; allowed: text and numbers")
        # Optimiser states have integer keys, which JSON objects cannot; pairs keep the type.
        return {"$items": [[k, take_tensors(v, tensors, f"{path}/{k}")] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return [take_tensors(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"state_dict holds a {type(value).__name__} at {path or '/'}; allowed: tensors and JSON scalars")


def put_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The state of which :func:`take_tensors` has made ``value`` and ``tensors``."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {key: put_tensors(item, tensors) for key, item in value["$items"]}
    if isinstance(value, list):
        return [put_tensors(item, tensors) for item in value]
    return value
