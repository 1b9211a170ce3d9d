"""A shell script that repeats a recorded run in a new folder: its code, its packages, its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.spec import ExperimentSpec
from orchestrator.provenance.package import pin
from orchestrator.provenance.record import diff_name
from orchestrator.provenance.scrub import HIDDEN
from orchestrator.reproduce.differences import ARITHMETIC, FIRST
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.storage.settings import Settings

SHOWN = 12
"""Number of files missing in the record that are listed."""

OURS = "orchestrator"
"""The name of our own repository among the sources."""


def commands(recorded: Recorded, settings: Settings) -> list[str]:
    """The lines of a POSIX shell script that restores the recorded code and packages and repeats the run.

    A repository without a recorded address is cloned from the path in a variable that the script requires.
    """
    sources = recorded.environment.get("sources", [])
    folder = shlex.quote("reproduced-" + re.sub(r"[^\w.-]", "-", recorded.id))
    lines = [_comment(f"{recorded.kind} {recorded.id} once more"), "set -eu", f"mkdir {folder}", f"cd {folder}"]
    for number, source in enumerate(sources):
        lines += _clone(recorded, number, source)
    lines += _environment(recorded.environment, [source["name"] for source in sources])
    lines += _package(recorded.environment.get("package"), sources)
    if sources:
        lines.append(shlex.join(["cd", sources[0]["name"]]))
    if recorded.kind == "run" and isinstance(recorded.spec, ExperimentSpec):
        local = " --local" if recorded.environment.get("options", {}).get("local") else ""
        lines.append(_comment(f"without the comparison: {recorded.spec.command()}{local}"))
    return [*lines, shlex.join(["orchestrator", "reproduce", "run", recorded.run_id or recorded.id, *_where(settings)])]


def _clone(recorded: Recorded, number: int, source: Mapping[str, Any]) -> Iterator[str]:
    """Commands that restore one repository."""
    name = source["name"]
    into = shlex.quote(name)
    variable = "CLONE_OF_" + re.sub(r"\W", "_", name).upper()
    if source["url"]:
        yield shlex.join(["git", "clone", "--", source["url"].replace(f"{HIDDEN}@", ""), name])
    else:
        yield f'git clone -- "${{{variable}:?name a clone of the repository in this variable}}" {into}'
    if source["commit"]:
        yield shlex.join(["git", "-C", name, "checkout", source["commit"]])
    if source["diff"]:
        yield shlex.join(["git", "-C", name, "apply", str(recorded.files.absolute() / diff_name(number, name))])
    left: Sequence[str] = source["left_out"]
    yield from (_comment(f"not recorded: {item}") for item in left[:SHOWN])
    if len(left) > SHOWN:
        yield _comment(f"not recorded: {len(left) - SHOWN} more, named in environment.json")


def _environment(recorded: Mapping[str, Any], sources: Sequence[str]) -> Iterator[str]:
    """Commands for a virtual environment with the packages that affect results, in the recorded versions."""
    version = re.match(r"\d+\.\d+", recorded.get("python", ""))
    yield f"python{version[0] if version else '3'} -m venv environment"
    yield ". environment/bin/activate"
    packages: Mapping[str, str] = recorded.get("packages", {})
    pins = [pin(name, packages[name]) for name in FIRST[1:] if name in packages]
    if OURS in sources:
        yield shlex.join(["pip", "install", *pins, "-e", f"./{OURS}"])
    else:
        if pins:
            yield shlex.join(["pip", "install", *pins])
        yield _comment(f"not recorded: where {FIRST[0]} {packages.get(FIRST[0], '')} was installed from")
    for name, value in recorded.get("variables", {}).items():
        if name.startswith(ARITHMETIC) and name.isidentifier() and HIDDEN not in value:
            yield f"export {name}={shlex.quote(value)}"


def _package(package: Mapping[str, Any] | None, sources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Command that installs the package of a third-party workload, from its repository or its requirement."""
    projects = [f"./{source['name']}/{source['package']}" for source in sources if source.get("package")]
    if projects:
        yield shlex.join(["pip", "install", "-e", projects[0]])
    elif package and package["requirement"]:
        yield shlex.join(["pip", "install", "--", package["requirement"]])
    elif package:
        missing = f"where {package['name']} {package['version']}, the package of the workload, was installed from"
        yield _comment(f"not recorded: {missing}")


def _where(settings: Settings) -> list[str]:
    """The addresses that were flags of the command line; others come from the environment."""
    addresses = {"tracking": settings.tracking or "none", "storage": settings.remote or str(settings.storage)}
    return [f"--{name}={address}" for name, address in addresses.items() if settings.sources[name] == "flag"]


def _comment(text: str) -> str:
    return f"# {' '.join(text.split())}"
