"""Values that are repeated in the files of `deploy/` agree: versions, names, ports, hosts, variables."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import mlflow
import pytest
import yaml
from botocore.exceptions import ClientError
from moto import mock_aws
from packaging.requirements import Requirement

from orchestrator.storage.settings import NAMES
from tests.unit.deploy.manifests import (
    BACKUP,
    BUILDS,
    DEPLOY,
    EXAMPLE,
    KUBERAY,
    README,
    ROOT,
    SERVICES,
    build,
    commands_after,
    compose,
    containers,
    load,
    one,
    ray_clusters,
    variables,
)  # fmt: skip
from tests.unit.deploy.test_dockerfiles import CONSTRAINTS, arguments, base

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MLFLOW_SERVER = next(container for container in containers(build("base")) if container["name"] == "mlflow")
MLFLOW_IN_KUBERNETES = {variable["name"]: variable.get("value") for variable in MLFLOW_SERVER["env"]}
NODE_IN_KUBERNETES = next(container for container in containers(build("base")) if container["name"] == "ray-head")


def test_ray_version_is_equal_in_images_manifests_and_constraints() -> None:
    (bound,) = (need for need in PROJECT["dependencies"] if need.startswith("ray["))
    version = CONSTRAINTS["ray"]
    assert arguments(DEPLOY / "docker/ray.Dockerfile")["RAY_VERSION"] == version
    assert base(DEPLOY / "docker/ray.Dockerfile") == f"rayproject/ray:{version}-py311-gpu"
    assert {spec["rayVersion"] for name in BUILDS for spec in ray_clusters(name)} == {version}
    assert version in Requirement(bound).specifier


def test_image_tags_equal_the_project_version() -> None:
    files = [path for pattern in ("*.yaml", "*.md", "*.Dockerfile") for path in DEPLOY.rglob(pattern)]
    texts = [path.read_text() for path in files]
    assert README.count(f"-t orchestrator-ray:{PROJECT['version']}") == 1
    tags = {tag for text in texts for tag in re.findall(r"orchestrator-(?:ray|mlflow):([\w.]+)", text)}
    tags |= {tag for text in texts for tag in re.findall(r"newTag: ([\w.]+)", text)}
    assert tags | {EXAMPLE["VERSION"]} == {PROJECT["version"]}


def test_compose_and_kubernetes_use_the_same_postgres_image() -> None:
    (postgres,) = (container for container in containers(build("base")) if container["name"] == "postgres")
    assert postgres["image"] == SERVICES["postgres"]["image"]


def test_mlflow_uses_the_database_that_compose_and_kubernetes_start() -> None:
    uri = SERVICES["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"]
    assert MLFLOW_IN_KUBERNETES["MLFLOW_BACKEND_STORE_URI"] == uri
    assert f"database_uri = {uri}\n" in (DEPLOY / "docker/auth.ini").read_text()
    place = urlsplit(uri)
    assert place.password is None, "the URI is in logs; PGPASSWORD has the password"
    assert place.hostname in SERVICES
    (service,) = (
        each for each in build("base") if each["kind"] == "Service" and each["metadata"]["name"] == place.hostname
    )
    assert [port["port"] for port in service["spec"]["ports"]] == [place.port]
    made = SERVICES["postgres"]["environment"]
    (postgres,) = (container for container in containers(build("base")) if container["name"] == "postgres")
    in_kubernetes = {variable["name"]: variable.get("value") for variable in postgres["env"]}
    for environment in (made, in_kubernetes):
        assert (environment["POSTGRES_USER"], f"/{environment['POSTGRES_DB']}") == (place.username, place.path)


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_mlflow_accepts_the_host_name_of_the_nodes_tracking_uri(where: str) -> None:
    if where == "compose":
        uri = SERVICES["ray-head"]["environment"]["MLFLOW_TRACKING_URI"]
        server, port, asked_for = SERVICES["mlflow"]["environment"], 5000, SERVICES["mlflow"]["healthcheck"]["test"]
        assert urlsplit(asked_for[-1]).netloc == urlsplit(uri).netloc
        assert SERVICES["mlflow"]["ports"] == [f"127.0.0.1:{EXAMPLE['MLFLOW_PORT']}:{port}"]
        assert "localhost:*" in server["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")  # MLFLOW_PORT may differ
        assert urlsplit(uri).hostname in SERVICES
    else:
        (uri,) = {v["value"] for v in NODE_IN_KUBERNETES["env"] if v["name"] == "MLFLOW_TRACKING_URI"}
        server = MLFLOW_IN_KUBERNETES
        (port,) = {port["containerPort"] for port in MLFLOW_SERVER["ports"]}
        assert MLFLOW_SERVER["readinessProbe"]["exec"]["command"][-1] == urlsplit(uri).netloc
        (service,) = (
            each for each in build("base")
            if each["kind"] == "Service" and each["metadata"]["name"] == urlsplit(uri).hostname
        )  # fmt: skip
        assert [each["port"] for each in service["spec"]["ports"]] == [port]
        assert service["spec"]["selector"] == {"app.kubernetes.io/name": "mlflow"}
    assert urlsplit(uri).port == port == int(server["MLFLOW_PORT"])
    assert urlsplit(uri).netloc in server["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert urlsplit(server["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"]).scheme == "http"
    assert server["MLFLOW_SERVE_ARTIFACTS"] == "true"


def test_mlflow_allows_the_host_names_of_its_kubernetes_namespace() -> None:
    namespace = load((KUBERAY / "base/namespace.yaml").read_text())["metadata"]["name"]
    allowed = MLFLOW_IN_KUBERNETES["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {f"mlflow.{namespace}:5000", f"mlflow.{namespace}.svc.cluster.local:5000"} <= set(allowed)
    for name in BUILDS:
        assert {each["metadata"].get("namespace", namespace) for each in build(name)} == {namespace}


def test_team_sweep_uses_the_kueue_queue_of_the_team() -> None:
    queue = one("overlays/team", "LocalQueue")["metadata"]["name"]
    assert one("overlays/team/sweep", "RayJob")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": queue}


def test_every_environment_variable_is_one_that_a_program_reads() -> None:
    """An environment variable with a wrong name causes no error."""
    package = Path(mlflow.__file__).parent
    read = "\n".join(
        (package / name).read_text() for name in ("environment_variables.py", "cli/__init__.py", "utils/cli_args.py")
    )
    names = {name for service in SERVICES.values() for name in service["environment"]}
    expanded = {"BUCKET", "ARTIFACTS_BUCKET"}  # expanded by Kubernetes in another value
    names |= {
        variable["name"] for name in BUILDS for each in containers(build(name)) for variable in each.get("env", ())
    }
    names |= set(variables(DEPLOY / "nodes/nodes.env.example"))
    for dockerfile in (DEPLOY / "docker").glob("*.Dockerfile"):
        names |= set(re.findall(r"^(?:ENV| {4})\s*(\w+)=", dockerfile.read_text(), re.MULTILINE))
    ours = {variable for variable, _ in NAMES.values()} | {"ORCHESTRATOR_CACHE"}
    for name in names - expanded:
        if name.startswith("ORCHESTRATOR_"):
            assert name in ours
        elif name.startswith("MLFLOW_"):
            assert re.search(rf"[\"']{name}[\"']", read), name
        else:
            assert name.startswith(("AWS_", "RAY_", "RUSTFS_", "POSTGRES_", "PG", "NCCL_")) or name == "MPLCONFIGDIR", (
                name
            )


def test_nodes_have_equal_variables_and_mounts_in_all_deployments() -> None:
    listed = set(variables(DEPLOY / "nodes/nodes.env.example"))
    assert set(SERVICES["ray-head"]["environment"]) == listed
    image = (DEPLOY / "docker/ray.Dockerfile").read_text()
    for name, variable in (("home", "ORCHESTRATOR_HOME"), ("data", "ORCHESTRATOR_DATA")):
        assert NAMES[name][0] == variable
        assert f"{variable}=" in image
    (data,) = re.findall(r"ORCHESTRATOR_DATA=(\S+)", image)
    writable = [mount["mountPath"] for mount in NODE_IN_KUBERNETES["volumeMounts"] if mount["mountPath"] != "/dev/shm"]
    volumes = SERVICES["ray-worker"]["volumes"]
    assert [volume.removeprefix("datasets:") for volume in volumes] == writable
    for name in ("ORCHESTRATOR_HOME", "ORCHESTRATOR_CACHE", "MPLCONFIGDIR"):
        (place,) = re.findall(rf"{name}=(\S+)", image)
        assert any(f"{place}/".startswith(f"{root}/") for root in writable), f"{place} is in the read-only root"
    assert data in {mount["mountPath"] for mount in NODE_IN_KUBERNETES["volumeMounts"]}
    assert any(option.endswith(f":{data}") for option in _docker_options("cluster.yaml"))


def test_nodes_do_not_use_the_admin_account_of_mlflow() -> None:
    account = SERVICES["ray-head"]["environment"]["MLFLOW_TRACKING_USERNAME"]
    assert account == SERVICES["mlflow"]["environment"]["MLFLOW_TRACKING_USERNAME"]
    assert account == variables(DEPLOY / "nodes/nodes.env.example")["MLFLOW_TRACKING_USERNAME"] != "admin"
    assert "admin_username = admin\n" in (DEPLOY / "docker/auth.ini").read_text()
    assert not any("ADMIN" in name or name.startswith("PG") for name in SERVICES["ray-head"]["environment"])


def test_nodes_cannot_write_where_mlflow_keeps_its_models() -> None:
    """A registered model is code, so only MLflow has its artifacts' key and, in compose, access to their store."""
    for name, service in SERVICES.items():
        of_artifacts = "ARTIFACTS" in str(compose()["services"][name]["environment"])
        assert of_artifacts == (name in {"mlflow", "artifacts", "artifacts-bucket"}), name
        assert ("private" in service.get("networks", ())) == (of_artifacts or name == "postgres"), name
    assert compose()["networks"]["private"] == {"internal": True}
    for build_name in BUILDS:
        for container in containers(build(build_name)):
            keys = [
                variable["valueFrom"]["secretKeyRef"]
                for variable in container.get("env", ())
                if "valueFrom" in variable
            ]
            of_artifacts = any(key["key"].startswith("ARTIFACTS_") for key in keys)
            assert not of_artifacts or container["name"] in {"mlflow", "artifacts"}, container["name"]
            if container["name"] == "mlflow":
                assert "envFrom" not in container
    assert not any("ARTIFACTS" in name for name in variables(DEPLOY / "nodes/nodes.env.example"))


def test_ports_of_the_cluster_agree() -> None:
    head, worker = SERVICES["ray-head"]["command"], SERVICES["ray-worker"]["command"]
    assert "--port=6379" in head
    assert "--address=ray-head:6379" in worker
    assert SERVICES["ray-head"]["ports"] == [f"127.0.0.1:{EXAMPLE['RAY_PORT']}:8265"]
    assert "--dashboard-port=8265" in head
    assert urlsplit(SERVICES["ray-head"]["healthcheck"]["test"][-1]).port == 8265
    ports = {port["name"]: port["containerPort"] for port in NODE_IN_KUBERNETES["ports"]}
    assert (ports["gcs"], ports["dashboard"]) == (6379, 8265)


def test_paths_and_secrets_in_the_deploy_readme_exist() -> None:
    for path in re.findall(r"(?:^|[\s`(])(deploy/[\w./-]+)", README):
        made_by_the_reader = path in ("deploy/.env", "deploy/nodes/nodes.env")
        assert made_by_the_reader or (ROOT / path.rstrip(".")).exists(), path
    for name in {*re.findall(r"secret generic ([\w-]+)", README)}:
        assert name in _secrets(), name
    assert _secrets() <= {*re.findall(r"secret generic ([\w-]+)", README)}


def test_readme_puts_every_referenced_key_into_its_secret() -> None:
    given = README.split("secret generic mlflow-server ")[1].partition("kubectl")[0]
    held = {
        "mlflow-server": {key for names in re.findall(r"\^\(([\w|]+)\)=", given) for key in names.split("|")},
        "training": set(variables(DEPLOY / "nodes/nodes.env.example")) - {"MLFLOW_TRACKING_URI"},
    }
    assert held["mlflow-server"] <= set(EXAMPLE)
    for container in containers(build("base")):
        for variable in container.get("env", ()):
            if source := variable.get("valueFrom"):
                assert source["secretKeyRef"]["key"] in held[source["secretKeyRef"]["name"]], variable["name"]


def test_backup_commands_of_the_readme_cover_database_and_volumes() -> None:
    backup, restore = map("\n".join, commands_after(BACKUP))
    kept = set(compose()["volumes"]) - {"database", "datasets"}  # the database is backed up by pg_dump
    for lines in (backup, restore):
        assert set(re.findall(rf"{compose()['name']}_(\w+):/", lines)) == kept
        assert SERVICES["postgres"]["image"] in lines
    user, database = (SERVICES["postgres"]["environment"][f"POSTGRES_{name}"] for name in ("USER", "DB"))
    assert f"pg_dump -U {user} {database} > mlflow.sql" in backup
    assert f"psql -q -U {user} {database} < mlflow.sql" in restore
    on_kubernetes = f"kubectl exec {one('base', 'StatefulSet')['metadata']['name']}-0 -- pg_dump -U {user} {database}"
    assert on_kubernetes in README


COPY = re.compile(r"(?:cp|install)[^\n]* deploy/(?:\.env|nodes/nodes\.env)\.example deploy/(?:nodes/nodes)?\.env")
"""A command of a page or header that makes a file of passwords from its example."""


def test_files_of_passwords_are_created_with_mode_0600(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns(".env", "nodes.env"))
    files = (path for path in DEPLOY.rglob("*") if path.is_file() and path.name not in (".env", "nodes.env"))
    commands = {command for path in files for command in COPY.findall(path.read_text(errors="ignore"))}
    assert len(commands) == 2, commands
    for command in commands:
        subprocess.run(["bash", "-c", f"umask 022; {command}"], cwd=tmp_path, check=True)
    for name in (".env", "nodes/nodes.env"):
        assert (tmp_path / "deploy" / name).stat().st_mode & 0o777 == 0o600, name


def test_policy_of_the_nodes_key_allows_only_the_bucket_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is checked by a store that verifies keys: the nodes' calls succeed on the bucket of runs only."""
    policy = (DEPLOY / "nodes" / "runs-policy.json").read_text()
    runs, artifacts = EXAMPLE["RUNS_BUCKET"], EXAMPLE["ARTIFACTS_BUCKET"]
    assert variables(DEPLOY / "nodes/nodes.env.example")["ORCHESTRATOR_STORAGE"] == f"s3://{runs}"
    assert "(nodes/runs-policy.json)" in README
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "administrator")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "administrator")
    with mock_aws():
        administrator, people = boto3.client("s3"), boto3.client("iam")
        for bucket in (runs, artifacts):
            administrator.create_bucket(Bucket=bucket)
        people.create_user(UserName="nodes")
        people.put_user_policy(UserName="nodes", PolicyName="runs", PolicyDocument=policy)
        key = people.create_access_key(UserName="nodes")["AccessKey"]
        nodes = boto3.client("s3", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])
        monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)  # keys are checked from now on
        calls: dict[str, dict[str, Any]] = {
            "list_objects_v2": {}, "put_object": {"Key": "a", "Body": b"1"},
            "get_object": {"Key": "a"}, "delete_object": {"Key": "a"},
        }  # fmt: skip
        for call, arguments in calls.items():
            getattr(nodes, call)(Bucket=runs, **arguments)
            with pytest.raises(ClientError, match=r"403|AccessDenied"):
                getattr(nodes, call)(Bucket=artifacts, **arguments)


def _secrets() -> set[str]:
    found = set()
    for name in BUILDS:
        for container in containers(build(name)):
            found |= {source["secretRef"]["name"] for source in container.get("envFrom", ())}
            found |= {
                variable["valueFrom"]["secretKeyRef"]["name"]
                for variable in container.get("env", ())
                if "valueFrom" in variable
            }
    return found


def _docker_options(name: str) -> list[str]:
    options: list[str] = yaml.safe_load((DEPLOY / name).read_text())["docker"]["run_options"]
    return options
