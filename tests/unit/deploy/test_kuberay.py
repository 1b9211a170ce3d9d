"""The Kubernetes manifests, as kustomize combines them, against strict schemas and the rules of the operators."""

from __future__ import annotations

import ast
import copy
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from tests.unit.deploy import schemas
from tests.unit.deploy.manifests import (
    BUILDS,
    KUBERAY,
    README,
    ROOT,
    Manifest,
    build,
    containers,
    every_manifest,
    load,
    misspelt,
    one,
    pods,
    ray_clusters,
)

FREE = frozenset({"labels", "matchLabels", "annotations", "rayStartParams", "requests", "limits", "selector"})
"""Maps whose keys are the user's."""

BOUNDED = {"cpu", "memory", "ephemeral-storage"}
UNITS = {"m": 1e-3, "Mi": 2**20, "Gi": 2**30}
MANIFESTS = dict(every_manifest())
RAY = {name: manifest for name, manifest in MANIFESTS.items() if manifest["kind"].startswith("Ray")}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_manifest_is_valid_by_its_schema(name: str) -> None:
    schemas.check(MANIFESTS[name])


@pytest.mark.parametrize(
    "name", [name for name in MANIFESTS if name.startswith(("base", "sweep"))] + ["overlays/team:LocalQueue/sweeps"]
)
def test_a_misspelt_key_anywhere_is_caught(name: str) -> None:
    manifest = MANIFESTS[name]
    tried = 0
    for place, wrong in misspelt(manifest, FREE | {"metadata"}):
        if not place.startswith(("apiVersion", "kind", "metadata")):
            with pytest.raises((jsonschema.ValidationError, AssertionError)):  # noqa: PT012
                schemas.check(wrong)
                pytest.fail(f"{place} misspelt is not seen")
            tried += 1
    assert tried


@pytest.mark.parametrize("name", RAY)
def test_manifests_satisfy_the_rules_of_the_operators(name: str) -> None:
    assert schemas.operator_rules(RAY[name]) == []


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("metadata/name", "Sweep_1", "DNS-1035"),
        ("spec/clusterSelector", {"ray.io/cluster": "ray"}, "clusterSelector"),
        ("spec/deletionStrategy", {}, "deletionStrategy"),
        ("spec/ttlSecondsAfterFinished", -1, "ttlSecondsAfterFinished"),
        ("spec/activeDeadlineSeconds", 0, "activeDeadlineSeconds"),
        ("spec/backoffLimit", -1, "backoffLimit"),
        ("spec/shutdownAfterJobFinishes", False, "shutdownAfterJobFinishes"),
        ("spec/rayClusterSpec/enableInTreeAutoscaling", True, "autoscaling"),
        ("spec/rayClusterSpec/rayVersion", "2.51.0", "2.52.0"),
        ("spec/rayClusterSpec/authOptions/enableK8sTokenAuth", True, "enableK8sTokenAuth"),
        ("spec/rayClusterSpec/headGroupSpec/resources", {"CPU": "1"}, "rayStartParams or in the group"),
        ("spec/rayClusterSpec/headGroupSpec/rayStartParams/labels", "a=b", "labels"),
        ("spec/rayClusterSpec/workerGroupSpecs", [{"template": {}}] * 8, "seven"),
    ],
)
def test_violated_rule_of_an_operator_is_reported(path: str, value: Any, says: str) -> None:
    job = copy.deepcopy(one("overlays/team/sweep", "RayJob"))
    *steps, last = path.split("/")
    target = job
    for step in steps:
        target = target[step]
    target[last] = value
    (broken,) = schemas.operator_rules(job)
    assert says in broken


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which has kustomize in it, is not installed")
@pytest.mark.parametrize("name", BUILDS)
def test_kubectl_kustomize_builds_the_same_manifests(name: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", KUBERAY / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def known(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
        return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}

    assert known(list(yaml.load_all(done.stdout, yaml.CSafeLoader))) == known(build(name))


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_are_restricted_and_hold_no_secret(name: str) -> None:
    for pod in pods(MANIFESTS[name]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] >= 999
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() >= BOUNDED
            assert container["resources"]["limits"].keys() >= BOUNDED, "without limits a container can exhaust its node"
            for variable in container.get("env", ()):
                secret = any(word in variable["name"] for word in ("PASSWORD", "SECRET", "TOKEN", "ACCESS_KEY"))
                assert not secret or "secretKeyRef" in variable["valueFrom"], variable["name"]
    assert MANIFESTS[name]["kind"] != "Secret"


def test_volume_sizes_and_requests_are_within_the_limits_of_a_pod() -> None:
    """A pod's limit covers the sizes of its volumes on the node's disk, and requests do not exceed limits."""
    for name, manifest in MANIFESTS.items():
        for pod in pods(manifest):
            limits = [container["resources"]["limits"] for container in pod["containers"]]
            disks = (
                [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume] if "volumes" in pod else []
            )
            on_disk = [_number(disk["sizeLimit"]) for disk in disks if disk.get("medium") != "Memory"]
            assert sum(on_disk) <= sum(_number(limit["ephemeral-storage"]) for limit in limits), name
            for container in pod["containers"]:
                for resource, request in container["resources"]["requests"].items():
                    assert _number(request) <= _number(container["resources"]["limits"][resource]), (name, resource)


def test_only_the_autoscaler_has_a_kubernetes_token() -> None:
    """The drivers of jobs run on the head and could read a token there."""
    for name, manifest in MANIFESTS.items():
        for pod in pods(manifest):
            assert pod["automountServiceAccountToken"] is False, name
            tokens = {volume["name"] for volume in pod.get("volumes", ()) if "projected" in volume}
            for container in pod["containers"]:
                assert not tokens & {mount["name"] for mount in container.get("volumeMounts", ())}, name
    for name in ("base", "overlays/team", "overlays/gpu-nodes", "overlays/rdma"):
        spec = one(name, "RayCluster")["spec"]
        autoscaler = spec["autoscalerOptions"]
        assert autoscaler["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for kind in ("requests", "limits"):
            assert autoscaler["resources"][kind].keys() >= BOUNDED
        mounts = {mount["mountPath"]: mount["name"] for mount in autoscaler["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["headGroupSpec"]["template"]["spec"]["volumes"]}
        projected = volumes[mounts["/var/run/secrets/kubernetes.io/serviceaccount"]]["projected"]["sources"]
        assert {next(iter(source)) for source in projected} == {"serviceAccountToken", "configMap", "downwardAPI"}
        assert mounts["/tmp"] == "tmp"
    for name in ("overlays/cpu", "overlays/single-gpu"):
        assert "autoscalerOptions" not in one(name, "RayCluster")["spec"]


@pytest.mark.parametrize(("name", "gpus"), [("gpu-nodes", "8"), ("rdma", "8")])
def test_pod_of_a_multi_gpu_node_takes_all_gpus_and_shared_memory(name: str, gpus: str) -> None:
    """A pod takes a whole node, with shared memory for NCCL and loaders. With rdma, nodes communicate by RDMA."""
    for spec in (*ray_clusters(f"overlays/{name}"), *ray_clusters(f"overlays/{name}/sweep")):
        (group,) = spec["workerGroupSpecs"]
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
        assert shm == {"medium": "Memory", "sizeLimit": "64Gi"}
        assert pod["nodeSelector"] == {"nvidia.com/gpu.count": gpus}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        devices = {"nvidia.com/gpu": gpus} | ({"rdma/rdma_shared_device_a": "1"} if name == "rdma" else {})
        for kind in ("requests", "limits"):
            given = container["resources"][kind]
            assert {key: value for key, value in given.items() if "/" in key} == devices
        nccl = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("NCCL_")}
        expected = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "WARN"}
        assert nccl == (expected if name == "rdma" else {})
        (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
        assert not any("/" in key for key in head["resources"]["limits"])


def test_every_ray_node_has_shared_memory_the_data_and_the_credentials() -> None:
    for name, manifest in RAY.items():
        for pod in pods(manifest):
            (container,) = pod["containers"]
            if container["name"] == "ray-job-submitter":
                continue
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory", name
            assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "datasets"}, name
            assert container["envFrom"] == [{"secretRef": {"name": "training"}}], name


def test_sweep_job_shuts_down_and_ends_before_its_deadline() -> None:
    for name in BUILDS:
        if not name.endswith("sweep"):
            continue
        spec = one(name, "RayJob")["spec"]
        words = spec["entrypoint"].split()
        assert spec["shutdownAfterJobFinishes"] is True
        assert spec["backoffLimit"] > 0
        assert spec["submitterConfig"] == {"backoffLimit": 0}, "no retry before the workers are back"
        assert float(words[words.index("--time-budget") + 1]) < spec["activeDeadlineSeconds"]
        assert spec["preRunningDeadlineSeconds"] < spec["activeDeadlineSeconds"]


def test_sweep_cluster_has_the_pod_templates_of_the_permanent_cluster() -> None:
    """The pod templates are repeated in two files, since kustomize cannot share them."""
    for name in ("", "overlays/cpu/", "overlays/single-gpu/", "overlays/gpu-nodes/", "overlays/rdma/"):
        here, there = name.rstrip("/") or "base", f"{name}sweep"
        stays = copy.deepcopy(one(here, "RayCluster")["spec"])
        comes = one(there, "RayJob")["spec"]["rayClusterSpec"]
        head = stays["headGroupSpec"]["template"]["spec"]
        head["volumes"] = [volume for volume in head["volumes"] if "projected" not in volume]  # of the autoscaler
        assert stays["headGroupSpec"] == comes["headGroupSpec"]
        (stays,), (comes,) = stays["workerGroupSpecs"], comes["workerGroupSpecs"]
        assert stays["template"] == comes["template"]


def test_network_policies_allow_only_the_named_callers() -> None:
    policies = {
        policy["metadata"]["name"]: policy["spec"] for policy in build("base") if policy["kind"] == "NetworkPolicy"
    }
    assert policies.pop("default") == {"podSelector": {}, "policyTypes": ["Ingress"]}
    labels = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]
        for manifest in [*build("base"), *build("sweep")]
        for template in _templates(manifest)
    }
    assert set(policies) == labels - {"buckets"}, "only the Job buckets has no callers"
    for name, policy in policies.items():
        assert policy["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
        assert all(peer for rule in policy["ingress"] for peer in rule["from"])
    (to_database,) = policies["postgres"]["ingress"]
    assert to_database["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "mlflow"}}}]
    of_ray = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ray"}}}
    operator = {  # the label in KubeRay's helm chart and in its kustomize install, in any namespace
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}},
    }
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert policies["ray"]["ingress"] == [
        {"from": [of_ray]},
        {"from": [operator], "ports": [{"port": 8265}]},
        {"from": [prometheus], "ports": [{"port": 8080}]},
    ]
    ports = {port["containerPort"] for each in containers(build("base")) for port in each.get("ports", ())}
    asked = {
        port["port"] for policy in policies.values() for rule in policy["ingress"] for port in rule.get("ports", ())
    }
    assert asked < ports


def _number(quantity: str) -> float:
    """The value of a Kubernetes quantity: bytes, CPUs or devices."""
    unit = quantity.lstrip("0123456789.")
    return float(quantity.removesuffix(unit)) * (UNITS[unit] if unit else 1)


def _templates(value: Any) -> list[Manifest]:
    if isinstance(value, dict):
        own = [value] if "containers" in value.get("spec", {}) and "metadata" in value else []
        return own + [found for inner in value.values() for found in _templates(inner)]
    return [found for inner in value for found in _templates(inner)] if isinstance(value, list) else []


def test_arguments_of_the_ray_service_are_those_of_its_application() -> None:
    (application,) = load(one("serve", "RayService")["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())  # an import requires ray[serve]
    (build,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    taken = {node.value for node in ast.walk(build) if isinstance(node, ast.Constant)}
    assert application["args"].keys() <= taken


def test_a_team_s_images_are_from_its_registry() -> None:
    for name in ("overlays/team", "overlays/team/sweep", "overlays/team/serve"):
        ours = {each["image"] for each in containers(build(name)) if "orchestrator-" in each["image"]}
        assert ours
        assert all(image.startswith("registry.example.com/ml/") for image in ours), ours


def test_readme_names_every_serve_folder() -> None:
    assert all(f"deploy/kuberay/{name}`" in README for name in BUILDS if name.endswith("serve"))


def test_every_ray_cluster_requires_a_token() -> None:
    for name in BUILDS:
        for spec in ray_clusters(name):
            assert spec["authOptions"] == {"mode": "token"}, name


def test_network_policy_allows_requests_to_the_serve_port() -> None:
    policy = one("serve", "NetworkPolicy")["spec"]
    service = one("serve", "RayService")["spec"]["rayClusterConfig"]
    groups = [service["headGroupSpec"], *service["workerGroupSpecs"]]
    for group in groups:
        assert policy["podSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        ports = {port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]}
        assert all(rule["ports"] == [{"port": ports["serve"]}] for rule in policy["ingress"])
