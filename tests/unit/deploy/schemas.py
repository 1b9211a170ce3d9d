"""Strict schemas of Kubernetes and its operators, and the rules that schemas do not express."""

from __future__ import annotations

import gzip
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.unit.deploy.manifests import Manifest

KUBERNETES = "1.34"
LOCAL_QUEUE = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kueue.x-k8s.io/v1beta2"},
        "kind": {"const": "LocalQueue"},
        "metadata": {},
        "spec": {
            "type": "object",
            "required": ["clusterQueue"],
            "additionalProperties": False,
            "properties": {"clusterQueue": {"type": "string"}},
        },
    },
}
# Cached: otherwise each validation would read some megabytes of definitions again.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

METADATA = {"name", "namespace", "labels", "annotations"}
"""Allowed keys of ``metadata``, which the CRDs leave open."""


def definitions() -> Path:
    """The folder of KubeRay's CRDs. Without one, the test is skipped, or fails under ORCHESTRATOR_NO_SKIP=1."""
    given, data = os.environ.get("ORCHESTRATOR_KUBERAY_CRDS"), os.environ.get("ORCHESTRATOR_DATA")
    folder = Path(given) if given else Path(data).parent / "kuberay-crds" if data else None
    if folder and folder.is_dir():
        return folder
    why = "KubeRay's CRDs are not here: name their folder with ORCHESTRATOR_KUBERAY_CRDS"
    if os.environ.get("ORCHESTRATOR_NO_SKIP") == "1":
        pytest.fail(why)
    pytest.skip(why)


def check(manifest: Manifest) -> None:
    """Raises jsonschema's ValidationError, or AssertionError, for anything that is not known to be valid."""
    group = manifest["apiVersion"].partition("/")[0]
    if group == "ray.io":
        if manifest["kind"] == "RayService" and not (definitions() / "ray.io_rayservices.yaml.gz").exists():
            assert set(manifest["spec"]) == {"serveConfigV2", "rayClusterConfig"}
            check({**manifest, "kind": "RayCluster", "spec": manifest["spec"]["rayClusterConfig"]})
            return
        _ray(manifest["kind"], definitions()).validate(manifest)
        _check_metadata(manifest)
    elif group == "kueue.x-k8s.io":
        jsonschema.validate(manifest, LOCAL_QUEUE)
        _check_metadata(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def operator_rules(manifest: Manifest) -> list[str]:
    """Violations of the rules of KubeRay's operator, its CRDs (CEL) and Kueue's webhook, as shortened messages."""
    spec, kind = manifest["spec"], manifest["kind"]
    cluster = spec if kind == "RayCluster" else spec.get("rayClusterSpec", spec.get("rayClusterConfig"))
    broken = []

    def rule(holds: Any, text: str) -> None:
        if not holds:
            broken.append(text)

    rule(
        re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", manifest["metadata"]["name"]), "a DNS-1035 name of 47 at most"
    )
    if kind == "RayJob":
        rule(bool(cluster) != bool(spec.get("clusterSelector")), "one of rayClusterSpec and clusterSelector")
        rule(
            not ("deletionStrategy" in spec and {"shutdownAfterJobFinishes", "ttlSecondsAfterFinished"} & set(spec)),
            "deletionStrategy or shutdownAfterJobFinishes",
        )
        rule(spec.get("ttlSecondsAfterFinished", 0) >= 0, "ttlSecondsAfterFinished is not negative")
        rule(spec.get("activeDeadlineSeconds", 1) > 0, "activeDeadlineSeconds is positive")
        rule(spec.get("backoffLimit", 0) >= 0, "backoffLimit is not negative")
        rule("enableK8sTokenAuth" not in (cluster or {}).get("authOptions", {}), "enableK8sTokenAuth is not for RayJob")
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())] if cluster else []
    for group in groups:
        params = group.get("rayStartParams", {})
        amounts = {"num-cpus", "num-gpus", "memory", "resources"} & set(params)
        rule(not (amounts and group.get("resources")), "resources in rayStartParams or in the group")
        rule("labels" not in params, "labels stand in the group")
        if cluster.get("enableInTreeAutoscaling"):
            rule(group["template"]["spec"].get("restartPolicy", "Never") == "Never", "restartPolicy is Never")
    if cluster and "authOptions" in cluster:
        version = tuple(map(int, cluster.get("rayVersion", "0").split(".")[:2]))
        rule(version >= (2, 52), "authOptions need rayVersion 2.52.0 or later")
    if "kueue.x-k8s.io/queue-name" in manifest["metadata"].get("labels", {}):
        rule(not cluster.get("enableInTreeAutoscaling"), "a kueue managed job should not use autoscaling")
        rule(len(cluster["workerGroupSpecs"]) <= 7, "seven worker groups at most")
        rule(kind == "RayCluster" or spec.get("shutdownAfterJobFinishes"), "shutdownAfterJobFinishes in a queue")
    return broken


@cache
def _ray(kind: str, folder: Path) -> jsonschema.Draft7Validator:
    with gzip.open(folder / f"ray.io_{kind.lower()}s.yaml.gz") as file:
        versions = yaml.load(file, yaml.CSafeLoader)["spec"]["versions"]
    (found,) = (version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")
    return jsonschema.Draft7Validator(_strict(found))


def _strict(schema: Any) -> Any:
    """The schema with unknown keys refused, which the API server would drop silently."""
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(inner) for key, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def _check_metadata(value: Any) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("metadata"), dict):
            assert not set(value["metadata"]) - METADATA, f"unknown metadata: {set(value['metadata']) - METADATA}"
        for inner in value.values():
            _check_metadata(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_metadata(inner)
