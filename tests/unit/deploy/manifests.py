"""The content of `deploy/` as its tools read it.

Kustomize's overlays are resolved, and compose's variables are replaced.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
KUBERAY = DEPLOY / "kuberay"
BUILDS = (
    "base",
    "sweep",
    "serve",
    "overlays/cpu",
    "overlays/cpu/sweep",
    "overlays/single-gpu",
    "overlays/single-gpu/sweep",
    "overlays/team",
    "overlays/team/sweep",
    "overlays/team/serve",
    "overlays/gpu-nodes",
    "overlays/gpu-nodes/sweep",
    "overlays/rdma",
    "overlays/rdma/sweep",
)
"""Every folder that `kubectl apply -k` may be given."""

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "patches"}
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?\?)([^}]*))?\}")


def load(text: str) -> Any:
    """Parse YAML with libyaml, which is ten times as fast as PyYAML's parser in Python."""
    return yaml.load(text, yaml.CSafeLoader)


@cache
def build(name: str) -> list[Manifest]:
    """The output of `kubectl kustomize` for the features used here: JSON patches, images, namespace.

    The result is cached, so callers must not change it.
    """
    folder = KUBERAY / name
    plan = load((folder / "kustomization.yaml").read_text())
    assert not set(plan) - KNOWN, f"{folder}: build() does not support {set(plan) - KNOWN}"
    found: list[Manifest] = []
    for resource in plan["resources"]:
        path = (folder / resource).resolve()
        found += (
            build(str(path.relative_to(KUBERAY)))
            if path.is_dir()
            else list(yaml.load_all(path.read_text(), yaml.CSafeLoader))
        )
    found = json.loads(json.dumps(found))  # a copy in which each use of a YAML anchor is a separate object
    for patch in plan.get("patches", ()):
        operations = jsonpatch.JsonPatch(load(patch["patch"]))
        meant = [manifest for manifest in found if _is(manifest, patch["target"])]
        assert meant, f"{folder}: a patch of {patch['target']} matches no manifest"
        for manifest in meant:
            operations.apply(manifest, in_place=True)
    for manifest in found:
        for container in containers(manifest):
            for image in plan.get("images", ()):
                if container["image"].rpartition(":")[0] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
        if "namespace" in plan and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = plan["namespace"]
    return found


def every_manifest() -> Iterator[tuple[str, Manifest]]:
    """Each manifest of each build, with a name for a test's id."""
    for name in BUILDS:
        for manifest in build(name):
            yield f"{name}:{manifest['kind']}/{manifest['metadata']['name']}", manifest


def one(name: str, kind: str) -> Manifest:
    """The build's only manifest of that kind."""
    (found,) = (manifest for manifest in build(name) if manifest["kind"] == kind)
    return found


def pods(manifest: Any) -> Iterator[Manifest]:
    """The specs of all pods of a manifest, at any depth."""
    if isinstance(manifest, dict):
        if "containers" in manifest:
            yield manifest
        for value in manifest.values():
            yield from pods(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from pods(value)


def containers(manifest: Any) -> Iterator[Manifest]:
    for pod in pods(manifest):
        yield from pod["containers"]


def ray_clusters(name: str) -> Iterator[Manifest]:
    """The specs of the Ray clusters of a build, including those of its RayJobs and RayServices."""
    for manifest in build(name):
        if manifest["kind"] == "RayCluster":
            yield manifest["spec"]
        elif manifest["kind"] == "RayJob":
            yield manifest["spec"]["rayClusterSpec"]
        elif manifest["kind"] == "RayService":
            yield manifest["spec"]["rayClusterConfig"]


@cache
def compose(file: str = "compose.yaml") -> Manifest:
    """A compose file with anchors resolved and variables not replaced."""
    found: Manifest = load((DEPLOY / file).read_text())
    return found


def variables(file: Path) -> dict[str, str]:
    """NAME=value lines of an environment file."""
    lines = (tuple(line.split("=", 1)) for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return dict(lines)


def filled(value: Any, given: Mapping[str, str]) -> Any:
    """``value`` with compose's ${VARIABLE:?hint} replaced. Raises KeyError if a required variable has no value."""

    def put(match: re.Match[str]) -> str:
        name, operator, _ = match.groups()
        if not given.get(name) and (operator != "?" or name not in given):
            raise KeyError(name)
        return given[name]

    if isinstance(value, dict):
        return {key: filled(inner, given) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, given) for inner in value]
    return VARIABLE.sub(put, value) if isinstance(value, str) else value


EXAMPLE = variables(DEPLOY / ".env.example")
GIVEN = {name: value or "0123456789abcdef" for name, value in EXAMPLE.items()}
"""The example with the values that a user sets."""

SERVICES: dict[str, Manifest] = filled(compose(), GIVEN)["services"]
README = (DEPLOY / "README.md").read_text()
BACKUP = "and to restore them into a new stack:"
"""The sentence of the README above the commands of backup and restore under compose."""


def commands_after(sentence: str) -> list[list[str]]:
    """The lines of the code blocks that follow ``sentence`` in the README, by block, up to the next paragraph."""
    blocks: list[list[str]] = []
    for block in README.partition(sentence)[2].partition("\n\n")[2].split("\n\n"):
        if not block.startswith("    "):
            break
        blocks.append([line.strip() for line in block.splitlines()])
    return blocks


def misspelt(value: Any, free: frozenset[str], path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """``value`` with one misspelt key, for each key in turn except those directly below a name in ``free``."""
    for place, owner in _owners(value, path):
        if place and place[-1] in free:
            continue
        for key in owner:
            wrong = copy.deepcopy(value)
            target = wrong
            for step in place:
                target = target[step]
            target[f"{key}Z"] = target.pop(key)
            yield "/".join(map(str, (*place, key))), wrong


def _owners(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Manifest]]:
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from _owners(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _owners(inner, (*path, index))


def _is(manifest: Manifest, target: Mapping[str, str]) -> bool:
    return manifest["kind"] == target["kind"] and target.get("name") in (None, manifest["metadata"]["name"])
