"""The compose files: compose's schema, variables, secrets, limits, rights, health checks, and dependencies."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from tests.unit.deploy.manifests import DEPLOY, EXAMPLE, GIVEN, SERVICES, VARIABLE, Manifest, compose, filled, misspelt

FILES = ("compose.yaml", "compose.gpu.yaml")
FREE = frozenset({"environment", "services", "volumes", "networks", "args", "depends_on", "ulimits"})
"""Maps whose keys are ours."""

SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY")


@pytest.fixture(scope="module")
def schema() -> jsonschema.protocols.Validator:
    """The compose specification that is part of check-jsonschema."""
    text = (files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    return jsonschema.validators.validator_for(json.loads(text))(json.loads(text))


@pytest.mark.parametrize("name", FILES)
def test_compose_file_is_valid_by_the_specification(schema: jsonschema.protocols.Validator, name: str) -> None:
    schema.validate(filled(compose(name), GIVEN))


@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_key_anywhere_is_caught(schema: jsonschema.protocols.Validator, name: str) -> None:
    stack = {key: value for key, value in filled(compose(name), GIVEN).items() if not key.startswith("x-")}
    for place, wrong in misspelt(stack, FREE):
        assert not schema.is_valid(wrong), f"{place} misspelt is not detected"


def test_every_variable_is_in_the_example_and_must_have_a_value() -> None:
    text = "\n".join((DEPLOY / name).read_text() for name in FILES)
    used = VARIABLE.findall(text)
    assert {name for name, _, _ in used} | {"COMPOSE_PROFILES"} == set(EXAMPLE)
    assert all(operator for _, operator, _ in used), "a variable without :? is silently empty"
    assert "$" not in VARIABLE.sub("", text)


@pytest.mark.parametrize(
    "name", sorted({name for name, _, _ in VARIABLE.findall((DEPLOY / "compose.yaml").read_text())})
)
def test_missing_variable_raises_an_error_that_names_it(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        filled(compose(), {other: value for other, value in GIVEN.items() if other != name})


def test_only_the_s3_endpoints_may_be_empty() -> None:
    assert filled(compose(), {**GIVEN, "S3_ENDPOINT": "", "ARTIFACTS_ENDPOINT": ""})
    for name in set(GIVEN) - {"S3_ENDPOINT", "ARTIFACTS_ENDPOINT", "COMPOSE_PROFILES"}:
        with pytest.raises(KeyError):
            filled(compose(), {**GIVEN, name: ""})


def test_secrets_come_from_the_environment_and_the_example_holds_none() -> None:
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            if SECRET.search(name):
                assert VARIABLE.fullmatch(value), f"{name} is a literal"
        words = " ".join([*service.get("command", ()), *service.get("healthcheck", {}).get("test", ())])
        assert not SECRET.search(words), "all users can read a process's arguments"
    for name, value in EXAMPLE.items():
        assert not (SECRET.search(name) or name.endswith("_KEY")) or not value, f"{name} has a value in .env.example"


def test_services_that_are_built_keep_their_names() -> None:
    """An override file for a proxy names the services that are built."""
    built = {name for name, service in SERVICES.items() if "build" in service}
    assert built == {"mlflow", "ray-head", "ray-worker", "buckets"}
    assert SERVICES["artifacts-bucket"]["image"] == SERVICES["buckets"]["image"] == SERVICES["mlflow"]["image"]


def test_each_service_has_limits_and_a_read_only_root() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["pids_limit"] > 0, name
        assert {"mem_limit", "cpus"} <= set(service), name
        if "buckets.py" not in str(service.get("command")):  # those end after about a second
            for limit, variable in (("mem_limit", "MEMORY"), ("cpus", "CPUS")):
                (used,) = VARIABLE.findall(compose()["services"][name][limit])
                assert re.fullmatch(r"0|\d+g" if variable == "MEMORY" else r"[012]", EXAMPLE[used[0]]), used
                assert used[0].endswith(f"_{variable}"), used
        for place in service.get("tmpfs", ()):
            assert place.startswith("/"), name


def test_services_drop_all_capabilities_except_those_of_postgres() -> None:
    assert all(service["cap_drop"] == ["ALL"] for service in SERVICES.values())
    added = {name: set(service["cap_add"]) for name, service in SERVICES.items() if "cap_add" in service}
    assert added == {"postgres": {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}}


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        _, _, tag = service["image"].rpartition(":")
        assert re.match(r"\d+\.\d+", tag), f"{name}: {service['image']}"


def test_published_ports_are_bound_to_loopback() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert service.get("network_mode") is None
        assert not service.get("privileged")
        assert "no-new-privileges:true" in service["security_opt"]


def test_health_check_of_each_permanent_service_uses_its_own_name() -> None:
    for name, service in SERVICES.items():
        if service["restart"] == "no":
            continue
        words = " ".join(service["healthcheck"]["test"])
        # A worker's raylet listens only on its own loopback, and several workers share one service name.
        host = "127.0.0.1" if name == "ray-worker" else name
        assert re.search(rf"(//|--host=){host}\b", words), f"{name}: {words}"
    assert "/api/2.0/mlflow/" in SERVICES["mlflow"]["healthcheck"]["test"][-1], "/health hides the host check"


def test_services_depend_on_the_services_they_need() -> None:
    needs = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert needs["buckets"] == {"s3": {"condition": "service_healthy", "required": False}}
    assert needs["artifacts-bucket"] == {"artifacts": {"condition": "service_healthy", "required": False}}
    assert needs["mlflow"] == {
        "postgres": {"condition": "service_healthy"},
        "artifacts-bucket": {"condition": "service_completed_successfully"},
    }
    assert needs["ray-head"] == {
        "mlflow": {"condition": "service_healthy"},
        "buckets": {"condition": "service_completed_successfully"},
    }
    assert needs["ray-worker"] == {"ray-head": {"condition": "service_healthy"}}


def test_object_stores_are_optional_profiles() -> None:
    assert [name for name, service in SERVICES.items() if service.get("profiles")] == ["s3", "artifacts"]
    assert EXAMPLE["COMPOSE_PROFILES"] == "s3"


def test_ray_head_and_workers_share_image_environment_and_volumes() -> None:
    def common(service: Manifest) -> dict[str, Any]:
        return {key: service[key] for key in ("image", "build", "environment", "volumes", "shm_size", "init")}

    assert common(SERVICES["ray-head"]) == common(SERVICES["ray-worker"])
    assert SERVICES["ray-head"]["environment"]["RAY_AUTH_MODE"] == "token"
