"""The files of Ray's cluster launcher, read by the functions of `ray up`."""

from __future__ import annotations

import copy
import json
import re
import resource
import shlex
import subprocess
from typing import Any

import boto3
import jsonschema
import pytest
import yaml
from botocore.exceptions import ClientError
from moto import mock_aws
from ray.autoscaler._private.aws.config import _configure_iam_role
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.tags import TAG_RAY_CLUSTER_NAME, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS

from tests.unit.deploy.manifests import DEPLOY, ROOT, Manifest, misspelt, variables

FILES = ("cluster.yaml", "cluster-aws.yaml")
HEAD_POLICY: Manifest = json.loads((DEPLOY / "nodes" / "head-policy.json").read_text())
FREE = frozenset({"provider", "file_mounts", "available_node_types", "resources", "node_config", "Ebs"})
PROVIDERS = {
    "local": {"type", "head_ip", "worker_ips"},
    "aws": {"type", "region", "cache_stopped_nodes"},
}
"""Allowed keys of each provider, which Ray's schema leaves open."""


def read(name: str) -> Manifest:
    found: Manifest = yaml.safe_load((DEPLOY / name).read_text())
    return found


def check(config: Manifest) -> Manifest:
    """The configuration as completed by the launcher. Raises the launcher's error for an invalid one."""
    provider = config["provider"]
    if unknown := set(provider) - PROVIDERS[provider["type"]]:
        raise ValueError(f"unknown to the provider: {unknown}")
    complete: Manifest = prepare_config(copy.deepcopy(config))
    validate_config(complete)
    return complete


@pytest.mark.parametrize("name", FILES)
def test_launcher_accepts_the_cluster_file(name: str) -> None:
    complete = check(read(name))
    assert complete["max_workers"] == sum(kind["max_workers"] for kind in complete["available_node_types"].values())


@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_key_is_caught(name: str) -> None:
    for place, wrong in misspelt(read(name), FREE | {"BlockDeviceMappings"}):
        if "node_config" in place.split("/")[:-1]:  # keys of EC2
            continue
        with pytest.raises((jsonschema.ValidationError, AssertionError, ValueError, KeyError, TypeError)):  # noqa: PT012
            check(wrong)
            pytest.fail(f"{place} misspelt is not seen")


@pytest.mark.parametrize("name", FILES)
def test_idle_machines_end_and_files_of_secrets_are_not_copied(name: str) -> None:
    config = read(name)
    assert 0 < config["idle_timeout_minutes"] <= 60
    assert {"**/.git/**", "**/.venv/**", "**/data/**", "**/.env"} <= set(config["rsync_exclude"])
    assert ":latest" not in config["docker"]["image"]
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(config["docker"]["run_options"])


def test_only_the_head_has_an_aws_instance_profile() -> None:
    config = read("cluster-aws.yaml")
    profiles = {kind: each["node_config"].get("IamInstanceProfile") for kind, each in _kinds(config).items()}
    assert profiles == {config["head_node_type"]: {"Name": "orchestrator-head"}, "gpu": None}
    bootstrap = _configure_iam_role({**copy.deepcopy(config), "head_node": {}})  # without a request to AWS
    assert bootstrap["head_node"] == {}, "the launcher must not create a role"
    tags = {
        value
        for statement in HEAD_POLICY["Statement"]
        for key, value in statement.get("Condition", {}).get("StringEquals", {}).items()
        if key.endswith(f"Tag/{TAG_RAY_CLUSTER_NAME}")
    }
    assert tags == {config["cluster_name"]}
    for page in (DEPLOY / "README.md", ROOT / "docs" / "access.md"):
        assert "nodes/head-policy.json)" in page.read_text()


@pytest.mark.slow
def test_policy_of_the_head_allows_only_the_calls_of_the_autoscaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Ray's own calls against moto, which checks actions, but neither resources nor conditions of EC2."""
    config = read("cluster-aws.yaml")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "administrator")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "administrator")
    actions = [{**statement, "Resource": "*"} for statement in HEAD_POLICY["Statement"]]
    policy = json.dumps({**HEAD_POLICY, "Statement": actions})
    with mock_aws():
        iam = boto3.client("iam")
        iam.create_user(UserName="head")
        iam.put_user_policy(UserName="head", PolicyName="head", PolicyDocument=policy)
        made = iam.create_access_key(UserName="head")["AccessKey"]
        key = {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
        region = config["provider"]["region"]
        ec2 = boto3.client("ec2", region_name=region)
        worker = {
            **config["available_node_types"]["gpu"]["node_config"],
            "ImageId": "ami-03cf127a",  # an image of moto, whose full list takes seconds
            "SubnetIds": [ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
        }
        monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)  # keys are checked from now on
        provider = AWSNodeProvider({**config["provider"], "aws_credentials": key}, config["cluster_name"])
        provider.create_node(worker, {TAG_RAY_NODE_KIND: "worker"}, 1)
        (node,) = provider.non_terminated_nodes({})
        provider._create_tags({(TAG_RAY_NODE_STATUS, "up-to-date"): [node]})
        provider.terminate_nodes([node])
        refused = {
            "s3": ("list_buckets", {}),
            "iam": ("list_roles", {}),
            "ec2": ("authorize_security_group_ingress", {"GroupId": "sg-1", "IpPermissions": []}),
        }
        for service, (call, arguments) in refused.items():
            with pytest.raises(ClientError, match=r"403|AccessDenied|UnauthorizedOperation|not authorized"):
                getattr(boto3.client(service, region_name=region, **key), call)(**arguments)


@pytest.mark.parametrize("name", FILES)
def test_nodes_read_the_token_from_a_file_and_not_from_a_command(name: str) -> None:
    config = read(name)
    assert config["file_mounts"] == {"/home/ray/nodes": "deploy/nodes"}
    assert (ROOT / "deploy/nodes/nodes.env.example").is_file()
    given = variables(DEPLOY / "nodes/nodes.env.example")
    assert given["RAY_AUTH_MODE"] == "token"
    for variable in ("RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert given[variable] == ""
    for command in _starts(config):
        assert command.startswith("set -a && . ~/nodes/nodes.env && set +a && ")


@pytest.mark.parametrize("name", FILES)
def test_head_has_no_cpus_and_its_dashboard_is_on_loopback(name: str) -> None:
    config = read(name)
    (head,) = (command for command in _starts(config) if "--head" in command)
    words = shlex.split(head)
    assert "--dashboard-host=127.0.0.1" in words
    kinds: dict[str, Any] = config.get("available_node_types", {})
    assert "--num-cpus=0" in words or kinds[config["head_node_type"]]["resources"] == {"CPU": 0}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("hard", "files"), [(4096, 4096), (None, 65536)])
def test_limit_of_open_files_is_raised_to_the_allowed_maximum(name: str, hard: int | None, files: int) -> None:
    """If the hard limit is lower, as in rootless Docker, Ray starts with the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = "ulimit -Sn 1024;" + (f"ulimit -Hn {hard};" if hard else "")
    for command in _starts(read(name)):
        (limit,) = re.findall(r"set \+a && (.*) && *ray start", command)
        done = subprocess.run(
            ["bash", "-c", f"{lower} {limit} && ulimit -n"], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) == (files if most == resource.RLIM_INFINITY else min(files, most))


def test_files_of_passwords_are_ignored_by_git() -> None:
    assert (DEPLOY / ".gitignore").read_text().split() == [".env", "nodes/nodes.env"]


def _kinds(config: Manifest) -> Manifest:
    kinds: Manifest = config["available_node_types"]
    return kinds


def _starts(config: Manifest) -> list[str]:
    commands = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    return [command for command in commands if "ray start" in command]
