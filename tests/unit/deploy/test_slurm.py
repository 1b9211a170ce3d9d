"""Slurm's scripts without Slurm: syntax, and options of sbatch and Ray. ``make test-deploy`` runs them with Slurm."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest

from tests.unit.deploy.manifests import DEPLOY

FOLDER = DEPLOY / "slurm"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
JOB = {"SLURM_JOB_ID": f"test{os.getpid()}", "SLURM_TASK": "test", "SLURM_CPUS_ON_NODE": "4"}
MIB = 1048576
PROGRAMS = {
    "ray": """printf "%s\\n" "$@"
for word; do case $word in --temp-dir=*) stat -c "%a %n" "$(dirname "${word#*=}")";; esac; done
until [ -e "$LOST" ]; do /bin/sleep 0.01; done; exit ${START:-0}""",
    "scontrol": 'echo "scontrol $*"',
    "sleep": "exit 0",
}
"""Stand-ins that print their arguments and do not wait; the node's Ray ends once the file ``$LOST`` exists."""

Head = Literal["listens", "is lost", "never starts"]


def node(folder: Path, head: Head = "listens", **variables: str) -> list[str]:
    """The output of the stand-ins for Ray and Slurm when ``node.sh`` runs with these variables of Slurm.

    ``head`` is the behaviour of Ray's head.
    """
    lost = folder / "lost"
    for name, body in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
        if head != "never starts":
            listening.listen()

        def lose() -> None:
            listening.accept()
            listening.close()
            lost.touch()

        if head == "is lost":
            Thread(target=lose, daemon=True).start()
        else:
            lost.touch()
        address = {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_PORTS": port, "LOST": str(lost)}
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", FOLDER / "node.sh"], env={"PATH": path, **JOB, **address, **variables}, capture_output=True,
            text=True, check=not variables.get("START"),
        )  # fmt: skip
    return done.stdout.splitlines()


def ray_start(folder: Path, **variables: str) -> list[str]:
    """The arguments of ``ray start`` in ``node.sh``."""
    return node(folder, **variables)[1:-1]


def memory(folder: Path, **variables: str) -> list[int]:
    """The memory and the object store of the options of ``ray start``, in bytes."""
    words = ray_start(folder, SLURM_NODEID="2", **variables)
    return [int(word.partition("=")[2]) for word in words if "memory" in word]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_has_valid_bash_syntax(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def test_both_job_scripts_have_equal_sbatch_options() -> None:
    orchestrator, array = (
        [line for line in (FOLDER / name).read_text().splitlines() if line.startswith("#SBATCH")]
        for name in ("orchestrator.sbatch", "array.sbatch")
    )
    assert orchestrator == array
    assert len(orchestrator) == 5


def test_ray_gets_the_memory_of_the_slurm_job(tmp_path: Path) -> None:
    assert memory(tmp_path, SLURM_MEM_PER_NODE="8000") == [5600 * MIB, 1600 * MIB]
    assert memory(tmp_path, SLURM_MEM_PER_CPU="2000") == [5600 * MIB, 1600 * MIB]  # 4 CPUs
    assert memory(tmp_path, SLURM_MEM_PER_CPU="4000", SLURM_CPUS_PER_TASK="2") == [5600 * MIB, 1600 * MIB]


@pytest.mark.parametrize("variables", [{}, {"SLURM_MEM_PER_NODE": "0"}, {"SLURM_MEM_PER_CPU": "0"}], ids=str)
def test_ray_gets_no_memory_option_without_a_slurm_limit(variables: dict[str, str], tmp_path: Path) -> None:
    assert memory(tmp_path, **variables) == []


def test_temporary_folder_of_ray_is_private_and_removed(tmp_path: Path) -> None:
    """Ray creates the folder of its sockets with mode 0777."""
    printed = node(tmp_path, SLURM_NODEID="1")
    folder = next(word for word in printed if word.startswith("--temp-dir=")).removeprefix("--temp-dir=")
    assert printed[-1] == f"700 {Path(folder).parent}"
    assert not Path(folder).parent.exists(), "the folder is not removed"


def test_the_first_node_is_the_head_and_its_dashboard_on_loopback(tmp_path: Path) -> None:
    head, worker = (ray_start(tmp_path, SLURM_NODEID=str(node), SLURM_GPUS_ON_NODE="8") for node in (0, 7))
    assert {"--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"} <= set(head)
    assert any(word.startswith("--address=127.0.0.1:") for word in worker)
    assert "--head" not in worker
    for words in (head, worker):
        assert {"--num-cpus=4", "--num-gpus=8"} <= set(words)
        ports = [word.partition("=")[2] for word in words if word.startswith("--") and "-port=" in word]
        ports = [port for port in ports if port != "0"]  # 0 is any free port
        assert len(set(ports)) == len(ports), ports


@pytest.mark.parametrize(
    ("number", "head", "requeued"),
    [
        pytest.param("1", "is lost", True, id="the head was lost"),
        pytest.param("1", "listens", False, id="this node's Ray ended alone"),
        pytest.param("2", "is lost", False, id="one node is enough"),
        pytest.param("1", "never starts", False, id="a head that never started"),
    ],
)
def test_the_second_node_requeues_a_job_whose_head_was_lost(
    number: str, head: Head, requeued: bool, tmp_path: Path
) -> None:
    assert ("scontrol requeue test" in node(tmp_path, head, SLURM_NODEID=number)) is requeued


@pytest.mark.parametrize("number", ["0", "1"])
def test_failed_ray_start_is_retried_while_the_head_answers(number: str, tmp_path: Path) -> None:
    printed = node(tmp_path, SLURM_NODEID=number, START="1")
    assert printed.count("start") == 3
    assert "scontrol requeue test" not in printed, "the head answers"


def test_a_node_whose_head_was_lost_does_not_try_again(tmp_path: Path) -> None:
    """Ray's processes end with an error; joining the lost head again would take minutes."""
    printed = node(tmp_path, "is lost", SLURM_NODEID="1", START="1")
    assert printed.count("start") == 1
    assert "scontrol requeue test" in printed


@pytest.mark.parametrize(
    ("preempted", "code", "signalled", "requeued"),
    [
        pytest.param("2026-11-29T14:54:07", 1, "", True, id="preempted"),
        pytest.param("None", 1, "", False, id="the command failed"),
        pytest.param("2026-11-29T14:54:07", 0, "", False, id="preempted after the command's end"),
        pytest.param("None", 143, "durable", True, id="near the time limit"),
        pytest.param("None", 143, "wait_for_nodes", False, id="a time limit below the warning's"),
        pytest.param("None", 1, "wait_for_nodes", False, id="the same, when the nodes are there"),
        pytest.param("2026-11-29T14:54:07", 143, "wait_for_nodes", True, id="preempted before the command's start"),
    ],
)
def test_a_job_that_slurm_stops_is_requeued(
    preempted: str, code: int, signalled: str, requeued: bool, tmp_path: Path
) -> None:
    """``signalled`` is the program that is running when the signal before the time limit or preemption arrives."""
    then = "exit 0" if signalled and code == 1 else "exec /bin/sleep 50"
    ignore = 'trap "" TERM; ' if then == "exit 0" else ""
    signal = f'case "$*" in *{signalled or "nothing"}*) {ignore}kill -USR1 $PPID; {then};; esac'
    programs = {
        "scontrol": f'echo "scontrol $*   PreemptEligibleTime=2026-11-29T14:53:41 PreemptTime={preempted}"',
        "python": f'{signal}; case "$*" in *durable*) exit {code};; esac',
        "srun": "exec /bin/sleep 60",
        "scancel": "until pkill -P $PPID -f '^/bin/sleep 60'; do /bin/sleep 0.1; done",  # it may be before srun's start
        "sleep": "exit 0",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "ORCHESTRATOR_SLURM": str(FOLDER)}
    done = subprocess.run(
        ["bash", FOLDER / "orchestrator.sbatch", "name", "run", "toy"], env={"PATH": path, **job},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ("scontrol requeue 7" in done.stdout) is requeued, done.stdout + done.stderr
    assert done.returncode == code, done.stderr
    assert ("the time limit is too short" in done.stderr) is (signalled == "wait_for_nodes" and not requeued)
