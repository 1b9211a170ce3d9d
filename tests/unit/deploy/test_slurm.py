"""Slurm's scripts without Slurm: their syntax, what they tell sbatch and Ray. ``make test-deploy`` runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.manifests import DEPLOY

FOLDER = DEPLOY / "slurm"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
JOB = {"SLURM_JOB_ID": "test", "SLURM_CPUS_ON_NODE": "4", "RAY_PORTS": "10050", "RAY_ADDRESS": "192.0.2.1:10050"}
MIB = 1048576


def ray_start(folder: Path, **variables: str) -> list[str]:
    """The words that ``node.sh`` gives to ``ray start`` on a node with these variables of Slurm."""
    program = folder / "ray"
    program.write_text('#!/bin/sh\n[ "$1" != start ] || printf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **JOB, **variables}
    done = subprocess.run(["bash", FOLDER / "node.sh"], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[1:]


def memory(folder: Path, **variables: str) -> list[int]:
    """The memory and the object store that Ray is told, in bytes."""
    words = ray_start(folder, SLURM_NODEID="2", **variables)
    return [int(word.partition("=")[2]) for word in words if "memory" in word]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_syntax(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def test_both_jobs_tell_sbatch_the_same() -> None:
    orchestrator, array = (
        [line for line in (FOLDER / name).read_text().splitlines() if line.startswith("#SBATCH")]
        for name in ("orchestrator.sbatch", "array.sbatch")
    )
    assert orchestrator == array
    assert len(orchestrator) == 5


def test_ray_is_told_the_job_s_memory(tmp_path: Path) -> None:
    assert memory(tmp_path, SLURM_MEM_PER_NODE="8000") == [5600 * MIB, 1600 * MIB]
    assert memory(tmp_path, SLURM_MEM_PER_CPU="2000") == [5600 * MIB, 1600 * MIB]  # 4 CPUs
    assert memory(tmp_path, SLURM_MEM_PER_CPU="4000", SLURM_CPUS_PER_TASK="2") == [5600 * MIB, 1600 * MIB]


@pytest.mark.parametrize("variables", [{}, {"SLURM_MEM_PER_NODE": "0"}, {"SLURM_MEM_PER_CPU": "0"}], ids=str)
def test_without_a_limit_ray_takes_the_machine_s(variables: dict[str, str], tmp_path: Path) -> None:
    assert memory(tmp_path, **variables) == []


def test_the_first_node_is_the_head_and_its_dashboard_on_loopback(tmp_path: Path) -> None:
    head, worker = (ray_start(tmp_path, SLURM_NODEID=str(node), SLURM_GPUS_ON_NODE="8") for node in (0, 7))
    assert {"--head", "--port=10050", "--node-ip-address=192.0.2.1", "--dashboard-host=127.0.0.1"} <= set(head)
    assert "--address=192.0.2.1:10050" in worker
    assert "--head" not in worker
    for words in (head, worker):
        assert {"--num-cpus=4", "--num-gpus=8"} <= set(words)
        ports = [word.partition("=")[2] for word in words if word.startswith("--") and "-port=" in word]
        assert len({*ports} - {"0"}) == len([port for port in ports if port != "0"]), ports
