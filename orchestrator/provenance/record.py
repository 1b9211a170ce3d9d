"""What a run's record must hold so that it can be repeated: what was asked, code, packages, machine, command.

The record is four kinds of files, in the run's folder from its start and on its MLflow run: ``spec.json`` (of a
sweep ``sweep.json``), ``environment.json``, the uncommitted difference of each repository (``source.diff``), and the
search space where it is a file of the user's (``space.py``). Nothing in them is secret: see scrub.py.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from orchestrator.provenance import machine, package, private_files
from orchestrator.provenance.scrub import scrub, scrub_variables, scrub_words
from orchestrator.provenance.source import Source, capture, pack, unpack

FORMAT = 1
SPEC, SWEEP, ENVIRONMENT, SPACE = "spec.json", "sweep.json", "environment.json", "space.py"

CARRIED = "ORCHESTRATOR_SOURCE"
"""The variable in which a submitted job has its client's code: Ray sends files without their repository."""

CARRIED_BYTES = 90_000
"""Linux takes 128 KiB a variable, and Ray puts all of a job's variables together into one more."""

PREFIXES = ("ORCHESTRATOR_", "MLFLOW_", "RAY_", "CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_",
            "TORCH_", "PYTORCH_", "PYTHONHASHSEED")  # fmt: skip
"""Variables of the environment that are kept."""

NOT_KEPT = (CARRIED, "RAY_JOB_CONFIG_JSON_ENV_VAR", "ORCHESTRATOR_NOTIFY")
"""Bulk, all of a job's variables once more, and an address or command that is a secret as a whole."""


def command() -> str:
    """The command line that started this process, as a user would type it, without its secrets."""
    words = scrub_words(sys.argv)
    if Path(words[0]).name in ("orchestrator", "__main__.py"):
        words[0] = "orchestrator"
    return shlex.join(words)


@cache
def packages() -> dict[str, str]:
    """Every installed distribution and its version, sorted by name."""
    found = {str(d.metadata["Name"]): d.version for d in distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def sources(
    directory: Path | None = None, apart: Sequence[Path] = (), workload: str | None = None
) -> tuple[Source, ...]:
    """The repository around ``directory`` (default: the working directory), our own, and that of a ``workload`` of
    somebody else's, as they are now.

    What lies below ``apart`` is no source: the home and the storage, where they are in a repository.

    In a submitted job they are the client's; where the cluster runs a checkout of its own, that one is added, under
    a name of its own.
    """
    here = capture(directory or Path.cwd(), Path(__file__).resolve().parents[1], apart, package.folder(workload))
    carried = unpack(os.environ.get(CARRIED, "")) if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") else ()
    found = {sent.name: sent for sent in carried}
    for source in here:
        if source.commit not in {sent.commit for sent in carried}:
            name = source.name
            while name in found:
                name = f"cluster-{name}"
            found[name] = replace(source, name=name)
    return tuple(found.values())


def carry(found: Sequence[Source]) -> dict[str, str]:
    """The variable that brings a job the code of its client; empty where there is no repository."""
    packed = pack(found, CARRIED_BYTES) if found else ""
    return {CARRIED: packed} if packed else {}


def code(found: Sequence[Source]) -> dict[str, str]:
    """The first repository, under MLflow's own names; empty where there is none."""
    if not found:
        return {}
    first = found[0]
    dirty = None if first.dirty is None else str(first.dirty).lower()
    values = {"commit": first.commit, "branch": first.branch, "repoURL": first.url, "dirty": dirty}
    return {f"mlflow.source.git.{name}": value for name, value in values.items() if value}


def tags(found: Sequence[Source]) -> dict[str, str]:
    """Command and code, under the names that MLflow's UI shows."""
    words = command()
    return {
        "orchestrator.command": words,
        "mlflow.source.name": words[:200],
        "mlflow.source.type": "LOCAL",
        **code(found),
    }


def environment(
    found: Sequence[Source], options: Mapping[str, Any], data: str | None = None, workload: str | None = None
) -> dict[str, Any]:
    """What ``environment.json`` holds; the differences are files beside it. ``data`` is the dataset's fingerprint."""
    return {
        "format": FORMAT,
        "command": command(),
        "options": dict(options),
        "data": data,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine.this(),
        "cluster": machine.cluster(),
        "variables": variables(),
        "code": code(found),
        "sources": [_described(number, source) for number, source in enumerate(found)],
        "package": package.described(workload),
        "packages": packages(),
    }


def variables() -> dict[str, str]:
    """The variables of the environment that are kept, without secrets, sorted by name."""
    kept = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES) and name not in NOT_KEPT}
    return scrub_variables(kept)


def diff_name(number: int, name: str) -> str:
    """The file of a repository's difference; the first one's is ``source.diff``."""
    return f"source-{name}.diff" if number else "source.diff"


def write(folder: Path, asked: Mapping[str, Any], found: Sequence[Source], data: str | None = None) -> list[Path]:
    """Write the record of ``asked``, what the folder's record says was asked for, and return its files.

    What is resumed keeps the record of its start; the code that goes on with it is added under ``resumed``. Only the
    spec is of now: a sweep may be to have more trials.
    """
    file = folder / ENVIRONMENT
    for name, key in ((SPEC, "experiment"), (SWEEP, "sweep")):
        if key in asked:
            write_spec(folder / name, asked[key])
    if file.exists():
        _resumed(file, found)
        return files(folder)
    _keep_space(folder, asked)
    for number, source in enumerate(found):
        if source.diff:
            text = source.diff.encode("utf-8", "surrogateescape")  # of files that are not UTF-8
            private_files.write(folder / diff_name(number, source.name), text)
    workload = (asked.get("experiment") or asked.get("sweep") or {}).get("workload")
    _write_json(file, environment(found, asked.get("options", {}), data, workload))
    return files(folder)


def write_spec(file: Path, spec: Mapping[str, Any]) -> None:
    """A spec with the format's version."""
    _write_json(file, {"format": FORMAT, **spec})


def note_cluster(folder: Path) -> None:
    """Add the cluster that this process is connected to now: it was not yet when the record was written."""
    file = folder / ENVIRONMENT
    if file.exists() and (found := machine.cluster()):
        _write_json(file, json.loads(file.read_text()) | {"cluster": found})


def files(folder: Path) -> list[Path]:
    """The record's files that are there."""
    named = [folder / name for name in (SPEC, SWEEP, ENVIRONMENT, SPACE)]
    return [*(file for file in named if file.exists()), *sorted(folder.glob("source*.diff"))]


def _described(number: int, source: Source) -> dict[str, Any]:
    names = ("name", "commit", "branch", "url", "dirty", "changed", "untracked", "left_out", "package")
    return {name: getattr(source, name) for name in names} | {
        "diff": diff_name(number, source.name) if source.diff else None
    }


def _keep_space(folder: Path, asked: Mapping[str, Any]) -> None:
    """Keep a search space that is a file of the user's: the sweep cannot be repeated without it."""
    space = str(asked.get("sweep", {}).get("search", {}).get("space", ""))
    if ":" in space and (file := Path(space.rpartition(":")[0])).is_file():
        private_files.write(folder / SPACE, scrub(file.read_text(errors="replace")))


def _resumed(file: Path, found: Sequence[Source]) -> None:
    kept = json.loads(file.read_text())
    code = [{"name": source.name, "commit": source.commit, "dirty": source.dirty} for source in found]
    again = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "command": command(), "sources": code}
    _write_json(file, kept | {"resumed": [*kept.get("resumed", []), again]})


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    partial = file.with_name(f".{file.name}")
    private_files.write(partial, json.dumps(value, indent=1))
    partial.replace(file)
