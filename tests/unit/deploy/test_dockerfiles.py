"""The Dockerfiles: pinned bases, unprivileged users, pinned packages, and a minimal build context."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.deploy.manifests import DEPLOY, ROOT

DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
CONSTRAINTS = {
    canonicalize_name(line.split("==")[0]): line.split("==")[1]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Instruction and arguments of each line, continuation lines joined."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    lines = (line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [(word, " ".join(rest.split())) for word, rest in lines]


def arguments(dockerfile: Path) -> dict[str, str]:
    return dict(value.split("=", 1) for word, value in instructions(dockerfile) if word == "ARG")


def base(dockerfile: Path) -> str:
    """The base image, with build arguments replaced."""
    (found,) = (value for word, value in instructions(dockerfile) if word == "FROM")
    return re.sub(r"\$\{(\w+)\}", lambda match: arguments(dockerfile)[match[1]], found)


def copied(dockerfile: Path) -> list[str]:
    """The files that are copied from the build context."""
    sources = [value for word, value in instructions(dockerfile) if word == "COPY"]
    return [path for value in sources for path in value.split()[:-1] if not path.startswith("--")]


def test_dockerfiles_are_those_of_mlflow_and_ray() -> None:
    assert [file.stem for file in DOCKERFILES] == ["mlflow", "ray"]


def test_base_images_are_pinned() -> None:
    for dockerfile in DOCKERFILES:
        assert re.search(r":\d+\.\d+\.\d+-", base(dockerfile)), base(dockerfile)


def test_python_of_the_base_images_is_3_11() -> None:
    found = [re.search(r"py(3)(\d+)|python:(3)\.(\d+)", base(dockerfile)) for dockerfile in DOCKERFILES]
    assert {tuple(filter(None, match.groups())) for match in found if match} == {("3", "11")}


def test_images_run_as_an_unprivileged_numeric_user() -> None:
    for dockerfile in DOCKERFILES:
        users = [value for word, value in instructions(dockerfile) if word == "USER"]
        # The user is a number, since Kubernetes cannot determine whether a name is root's.
        assert re.fullmatch(r"1000:\d+", users[-1])


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda file: file.stem)
def test_build_context_contains_only_the_copied_files(dockerfile: Path) -> None:
    lines = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "all other files must be excluded"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied(dockerfile))
    for source in copied(dockerfile):
        assert (ROOT / source).exists()


def test_pip_installs_use_the_constraints_file() -> None:
    for dockerfile in DOCKERFILES:
        for word, value in instructions(dockerfile):
            if word == "RUN" and "pip install" in value:
                assert "-c constraints.txt" in value or "--no-deps ." in value
    install = next(value for _, value in instructions(DEPLOY / "docker/mlflow.Dockerfile") if "pip install" in value)
    named = [Requirement(name.strip('"')) for name in install.partition("constraints.txt")[2].split()]
    assert {need.name for need in named} == {"mlflow", "psycopg2-binary", "boto3"}
    assert {canonicalize_name(need.name) for need in named} | {"flask-wtf"} <= set(CONSTRAINTS)


def test_packages_of_the_training_image_are_pinned_by_the_constraints() -> None:
    install = next(
        value for _, value in instructions(DEPLOY / "docker/ray.Dockerfile") if "requirements.py train" in value
    )
    extras = re.findall(r"requirements\.py (.*?) >", install)[-1].split()
    done = subprocess.run(
        [sys.executable, DEPLOY / "docker/requirements.py", *extras], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    needs = {canonicalize_name(Requirement(line).name): Requirement(line) for line in done.stdout.splitlines()}
    assert {"ray", "torch", "mlflow", "optuna", "nvidia-ml-py", "datasets", "boto3"} <= set(needs)
    for name, need in needs.items():
        assert need.specifier.contains(CONSTRAINTS[name]), f"{name} is not pinned"
