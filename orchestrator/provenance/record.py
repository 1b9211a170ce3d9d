"""The record that makes a run repeatable: its spec, code, packages, machine, command.

It has four kinds of files, in the run's folder from the start and on its MLflow run: ``spec.json`` (``sweep.json`` of
a sweep), ``environment.json``, the uncommitted diff of each repository (``source.diff``), and the search space, sampler
and scheduler where they are files of the user (``space.py`` ...). Secrets are removed from them: see scrub.py.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
CODE = {"workload": "workload.py", "space": SPACE, "sampler": "sampler.py", "scheduler": "scheduler.py"}
"""Copies of the user's code by the setting that names it."""

PACKAGE_CODE = "package_code"
"""Key in ``environment.json`` of the digest of a third-party workload's code."""

CARRIED = "ORCHESTRATOR_SOURCE"
"""Variable with the sources of the client of a submitted job: Ray sends files without their repository."""

CARRIED_BYTES = 90_000
"""Linux allows 128 KiB a variable, and Ray copies all variables of a job into one more."""

PREFIXES = ("ORCHESTRATOR_", "MLFLOW_", "RAY_", "CUDA_", "CUBLAS_", "NCCL_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_",
            "TORCH_", "PYTORCH_", "PYTHONHASHSEED")  # fmt: skip
"""Prefixes of the environment variables that are recorded."""

NOT_KEPT = (CARRIED, "RAY_JOB_CONFIG_JSON_ENV_VAR", "ORCHESTRATOR_NOTIFY")
"""Not recorded: two large copies of other data, and a notification address or command, which is a secret."""


MAIN = Path(__file__).parents[1] / "__main__.py"
"""What ``python -m orchestrator`` runs."""

NOTEBOOK = "a call in a notebook"
"""In place of the command line of its kernel, whose words say nothing of the run."""


def command() -> str:
    """The command line of this process as a user would type it, without secrets. A notebook has none."""
    program = Path(sys.argv[0])
    if program.name.endswith("kernel_launcher.py"):
        return NOTEBOOK
    words = scrub_words(sys.argv)
    if program.name == "orchestrator" or program.absolute() == MAIN:
        words[0] = "orchestrator"
    return shlex.join(words)


@cache
def packages() -> dict[str, str]:
    """Every installed distribution and its version, sorted by name."""
    every = [one.metadata for one in distributions()]  # each access parses the file
    versions = {str(one["Name"]): str(one["Version"]) for one in every if one["Name"]}
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def sources(
    directory: Path | None = None, apart: Sequence[Path] = (), workload: str | None = None
) -> tuple[Source, ...]:
    """Current state of the repositories around ``directory`` (default: the working directory), of our own code, and
    of a third-party ``workload``.

    Files below the folders ``apart`` (the home and the storage, if they lie in a repository) are left out. In a
    submitted job the sources are those of the client; a checkout that the cluster itself runs is added as
    ``cluster-<name>``.
    """
    here = capture(directory or Path.cwd(), Path(__file__).resolve().parents[1], apart, package.folder(workload))
    carried = unpack(os.environ.get(CARRIED, "")) if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") else ()
    by_name = {sent.name: sent for sent in carried}
    for source in here:
        if source.commit not in {sent.commit for sent in carried}:
            name = source.name
            while name in by_name:
                name = f"cluster-{name}"
            by_name[name] = replace(source, name=name)
    return tuple(by_name.values())


def carry(sources: Sequence[Source]) -> dict[str, str]:
    """The environment variable that passes the client's sources to a job; empty without a repository."""
    packed = pack(sources, CARRIED_BYTES) if sources else ""
    return {CARRIED: packed} if packed else {}


def code(sources: Sequence[Source]) -> dict[str, str]:
    """MLflow's tags of the first repository; empty without one."""
    if not sources:
        return {}
    first = sources[0]
    dirty = None if first.dirty is None else str(first.dirty).lower()
    values = {"commit": first.commit, "branch": first.branch, "repoURL": first.url, "dirty": dirty}
    return {f"mlflow.source.git.{name}": value for name, value in values.items() if value}


def tags(sources: Sequence[Source]) -> dict[str, str]:
    """Command and code as the tags that MLflow's UI shows."""
    words = command()
    return {
        "orchestrator.command": words,
        "mlflow.source.name": words[:200],
        "mlflow.source.type": "LOCAL",
        **code(sources),
    }


def environment(
    sources: Sequence[Source], options: Mapping[str, Any], data: str | None = None, workload: str | None = None
) -> dict[str, Any]:
    """Content of ``environment.json``; the diffs are separate files. ``data`` is the dataset's fingerprint."""
    return {
        "format": FORMAT,
        "command": command(),
        "options": dict(options),
        "data": data,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine.describe(),
        "cluster": machine.cluster(),
        "variables": variables(),
        "code": code(sources),
        "sources": [_described(number, source) for number, source in enumerate(sources)],
        "package": package.described(workload),
        "packages": packages(),
    }


def variables() -> dict[str, str]:
    """The environment variables that are recorded, without secrets, sorted by name."""
    kept = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES) and name not in NOT_KEPT}
    return scrub_variables(kept)


def diff_name(number: int, name: str) -> str:
    """The file name of a repository's diff; that of the first one is ``source.diff``."""
    return f"source-{name}.diff" if number else "source.diff"


def write(
    folder: Path,
    request: Mapping[str, Any],
    sources: Sequence[Source],
    data: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the record files and return their paths. ``request`` is the ``spec`` of the folder's ``record.json``.

    ``inputs``: digests of the files that training reads in addition to the dataset.

    A resumed run keeps its record, and the code that resumes it is added under ``resumed``. Only the spec is updated,
    since a sweep may get more trials. A damaged record is written again.
    """
    file = folder / ENVIRONMENT
    for name, key in ((SPEC, "experiment"), (SWEEP, "sweep")):
        if key in request:
            write_spec(folder / name, request[key])
    if before := private_files.read_json(file):
        _add_resume(file, before, sources)
        return files(folder)
    _keep_code(folder, request)
    for number, source in enumerate(sources):
        if source.diff:
            text = source.diff.encode("utf-8", "surrogateescape")  # files may not be UTF-8
            private_files.write(folder / diff_name(number, source.name), text)
    workload = _requested(request).get("workload")
    recorded = environment(sources, request.get("options", {}), data, workload)
    more = {PACKAGE_CODE: package.digest(workload), "inputs": dict(inputs or {})}
    _write_json(file, recorded | {name: value for name, value in more.items() if value})
    return files(folder)


def write_spec(file: Path, spec: Mapping[str, Any]) -> None:
    """Write a spec with the version of the format."""
    _write_json(file, {"format": FORMAT, **spec})


def note_cluster(folder: Path) -> None:
    """Add the Ray cluster, which is connected only after the record is written."""
    file = folder / ENVIRONMENT
    if (recorded := private_files.read_json(file)) and (cluster := machine.cluster()):
        _write_json(file, recorded | {"cluster": cluster})


def recorded_environment(folder: Path) -> dict[str, Any]:
    """The environment in the record (``data``: fingerprint of the dataset, ``sources``, ...).

    Empty if it is missing, damaged or may not be read.
    """
    with suppress(OSError):
        return private_files.read_json(folder / ENVIRONMENT) or {}
    return {}


def files(folder: Path) -> list[Path]:
    """The files of the record that exist."""
    named = [folder / name for name in (SPEC, SWEEP, ENVIRONMENT, *CODE.values())]
    return [*(file for file in named if file.exists()), *sorted(folder.glob("source*.diff"))]


def _described(number: int, source: Source) -> dict[str, Any]:
    names = ("name", "commit", "branch", "url", "dirty", "changed", "untracked", "left_out", "package")
    return {name: getattr(source, name) for name in names} | {
        "diff": diff_name(number, source.name) if source.diff else None
    }


def changed_code(folder: Path, request: Mapping[str, Any]) -> list[Path]:
    """The files of the user, and the folder of a third-party workload's code, that have changed since the record."""
    copies = [(file, folder / name) for file, name in _own_code(request) if (folder / name).is_file()]
    changed = [file for file, copy in copies if copy.read_text("utf-8", "replace") != _content(file)]
    workload = _requested(request).get("workload")
    then, now = recorded_environment(folder).get(PACKAGE_CODE), package.digest(workload)
    installed = package.folder(workload) if then and now and then != now else None
    return [*changed, *([installed] if installed else [])]


def _keep_code(folder: Path, request: Mapping[str, Any]) -> None:
    """Copy workload, search space, sampler and scheduler where they are files of the user: the run needs them."""
    for file, name in _own_code(request):
        private_files.write(folder / name, _content(file))


def _own_code(request: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Each file of the user that a request names, and the name of its copy."""
    spec = _requested(request)
    named = {**spec.get("search", {}), "workload": spec.get("workload", "")}
    for setting, name in CODE.items():
        code = str(named.get(setting, ""))
        if ":" in code and (file := Path(code.rpartition(":")[0])).is_file():
            yield file, name


def _requested(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec of the run or sweep that a request holds."""
    spec: Mapping[str, Any] = request.get("experiment") or request.get("sweep") or {}
    return spec


def _content(file: Path) -> str:
    return scrub(file.read_text("utf-8", "replace"))


def _add_resume(file: Path, content: Mapping[str, Any], sources: Sequence[Source]) -> None:
    code = [{"name": source.name, "commit": source.commit, "dirty": source.dirty} for source in sources]
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "command": command(), "sources": code}
    _write_json(file, {**content, "resumed": [*content.get("resumed", []), entry]})


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    private_files.replace(file, json.dumps(value, indent=1))
