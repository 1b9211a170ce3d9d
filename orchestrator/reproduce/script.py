"""A recorded run as a shell script: its code, an environment with its packages, its command, all in a new folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.spec import ExperimentSpec
from orchestrator.provenance.record import diff_name
from orchestrator.provenance.scrub import HIDDEN
from orchestrator.reproduce.differences import ARITHMETIC, FIRST
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.storage.settings import Settings

SHOWN = 12
"""Files named that the record lacks."""

OURS = "orchestrator"
"""What our own repository is called among the sources."""


def commands(found: Recorded, settings: Settings) -> list[str]:
    """The lines of a script for any POSIX shell that brings back what was recorded, and runs it.

    A repository whose address was not recorded is cloned from the path in a variable; the script asks for that.
    """
    sources = found.environment.get("sources", [])
    folder = shlex.quote("reproduced-" + re.sub(r"[^\w.-]", "-", found.id))
    lines = [_comment(f"{found.kind} {found.id} once more"), "set -eu", f"mkdir {folder}", f"cd {folder}"]
    for number, source in enumerate(sources):
        lines += _clone(found, number, source)
    lines += _environment(found.environment, [source["name"] for source in sources])
    lines += _package(found.environment.get("package"), sources)
    if sources:
        lines.append(shlex.join(["cd", sources[0]["name"]]))
    if found.kind == "run" and isinstance(found.spec, ExperimentSpec):
        local = " --local" if found.environment.get("options", {}).get("local") else ""
        lines.append(_comment(f"without the comparison: {found.spec.command()}{local}"))
    return [*lines, shlex.join(["orchestrator", "reproduce", "run", found.run_id or found.id, *_where(settings)])]


def _clone(found: Recorded, number: int, source: Mapping[str, Any]) -> Iterator[str]:
    """One repository as it stood."""
    name = source["name"]
    into, variable = shlex.quote(name), "CLONE_OF_" + re.sub(r"\W", "_", name).upper()
    if source["url"]:
        yield shlex.join(["git", "clone", "--", source["url"].replace(f"{HIDDEN}@", ""), name])
    else:
        yield f'git clone -- "${{{variable}:?name a clone of the repository in this variable}}" {into}'
    if source["commit"]:
        yield shlex.join(["git", "-C", name, "checkout", source["commit"]])
    if source["diff"]:
        yield shlex.join(["git", "-C", name, "apply", str(found.files.absolute() / diff_name(number, name))])
    left: Sequence[str] = source["left_out"]
    yield from (_comment(f"not recorded: {item}") for item in left[:SHOWN])
    if len(left) > SHOWN:
        yield _comment(f"not recorded: {len(left) - SHOWN} more, named in environment.json")


def _environment(recorded: Mapping[str, Any], sources: Sequence[str]) -> Iterator[str]:
    """A virtual environment with the packages that compute, in the recorded versions."""
    version = re.match(r"\d+\.\d+", recorded.get("python", ""))
    yield f"python{version[0] if version else '3'} -m venv environment"
    yield ". environment/bin/activate"
    packages: Mapping[str, str] = recorded.get("packages", {})
    # A build's own mark (2.9.0+cu128) is not known to the package index.
    pins = [f"{name}=={packages[name].partition('+')[0]}" for name in FIRST[1:] if name in packages]
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
    """The package that brings the workload, where that is somebody else's: from its repository, or as pip had it."""
    places = [f"./{source['name']}/{source['package']}" for source in sources if source.get("package")]
    if places:
        yield shlex.join(["pip", "install", "-e", places[0]])
    elif package and package["requirement"]:
        yield shlex.join(["pip", "install", "--", package["requirement"]])
    elif package:
        told = f"where {package['name']} {package['version']} was installed from, which brings the workload"
        yield _comment(f"not recorded: {told}")


def _where(settings: Settings) -> list[str]:
    """The places that were named on the command line; others come from the environment again."""
    places = {"tracking": settings.tracking or "none", "storage": settings.remote or str(settings.storage)}
    return [f"--{name}={place}" for name, place in places.items() if settings.sources[name] == "flag"]


def _comment(text: str) -> str:
    return f"# {' '.join(text.split())}"
