"""Packages as requirements of pip; of a third-party workload, its package, folder and where it was installed from."""

from __future__ import annotations

import hashlib
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
    """Name, version and pip ``requirement`` of a workload's package; None for a built-in workload. Never raises.

    ``requirement`` is None for a package installed from a folder, which other machines do not have.
    """
    distribution = package(workload) if workload else None
    if distribution is None:
        return None
    return {
        "name": distribution.name,
        "version": distribution.version,
        "requirement": _requirement(distribution),
    }


def folder(workload: str | None) -> Path | None:
    """The folder of a third-party workload's code; None for a built-in workload. Never raises."""
    if workload and package(workload):
        with suppress(Exception):  # a broken workload is reported where it is loaded
            return catalog()[workload].folder.resolve()
    return None


def digest(workload: str | None) -> str | None:
    """SHA-256 of the Python files below the folder of a third-party workload's code; None if that is no package."""
    where = folder(workload)
    if where is None or not (where / "__init__.py").is_file():  # a single module lies among those of other packages
        return None
    files = sorted(where.rglob("*.py"))
    contents = (f"{file.relative_to(where)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()


def project(folder: Path, root: Path) -> str | None:
    """Path of the installable project around ``folder``, relative to the repository ``root``; None for our own."""
    for parent in (folder, *folder.parents):
        about = _pyproject(parent / "pyproject.toml")
        if about.get("name") == "ray-experiment-orchestrator" or root not in (parent, *parent.parents):
            return None
        if about or (parent / "setup.py").is_file():
            return parent.relative_to(root).as_posix()
    return None


def pin(name: str, version: str) -> str:
    """The requirement of pip for a version, without the local part (2.9.0+cu128), which the package index lacks."""
    return f"{name}=={version.partition('+')[0]}"


def _pyproject(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        about: dict[str, Any] = tomllib.loads(file.read_text()).get("project", {})
        return about
    return {}


def _requirement(distribution: Distribution) -> str | None:
    """The requirement for pip; with an address if it was installed from one (PEP 610).

    None if no installer left its name: the package of that name on an index may be another one.
    """
    if not distribution.read_text("INSTALLER"):
        return None
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "null")
        url = scrub(origin["url"]) if origin else ""
        if origin and not re.match(r"(https?|ssh|git)://", url):
            return None
        if origin and (vcs := origin.get("vcs_info")):
            return f"{distribution.name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return f"{distribution.name} @ {url}" if url else f"{distribution.name}=={distribution.version}"
