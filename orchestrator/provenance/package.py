"""The package that a workload of others comes from: what it is called, where it lies, what pip had it from."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from orchestrator.provenance.scrub import scrub
from workloads.catalog import catalog, package


def described(workload: str | None) -> dict[str, str | None] | None:
    """Its name, version and, as ``requirement``, what pip would install: None where it came from a folder, which no
    other machine has. None for a workload of ours. Never raises.
    """
    found = package(workload) if workload else None
    if found is None:
        return None
    return {"name": found.name, "version": found.version, "requirement": _requirement(found)}


def folder(workload: str | None) -> Path | None:
    """Where the code of a workload of others lies; None for one of ours. Never raises."""
    if workload and package(workload):
        with suppress(Exception):  # broken: it will be told by whoever needs it
            return catalog()[workload].folder.resolve()
    return None


def project(folder: Path, root: Path) -> str | None:
    """Where below the repository ``root`` the project lies, for pip, that ``folder`` belongs to; None for ours."""
    for place in (folder, *folder.parents):
        about = _pyproject(place / "pyproject.toml")
        if about.get("name") == "ray-experiment-orchestrator" or root not in (place, *place.parents):
            return None
        if about or (place / "setup.py").is_file():
            return place.relative_to(root).as_posix()
    return None


def _pyproject(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        about: dict[str, Any] = tomllib.loads(file.read_text()).get("project", {})
        return about
    return {}


def _requirement(found: Distribution) -> str | None:
    """What names it to pip; where it was not had from an index, by its address there (PEP 610).

    None where no installer says that it was one: on an index, a stranger may have the name.
    """
    if not found.read_text("INSTALLER"):
        return None
    try:
        origin = json.loads(found.read_text("direct_url.json") or "null")
        url = scrub(origin["url"]) if origin else ""
        if origin and not re.match(r"(https?|ssh|git)://", url):
            return None
        if origin and (vcs := origin.get("vcs_info")):
            return f"{found.name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return f"{found.name} @ {url}" if url else f"{found.name}=={found.version}"
