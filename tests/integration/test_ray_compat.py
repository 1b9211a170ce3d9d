"""The functions of Ray that orchestrator/cluster/ray_compat.py uses, and local clusters, with a real Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from orchestrator.cluster import connection, leftovers, ray_compat
from orchestrator.cluster.connection import check_versions
from orchestrator.errors import UNAVAILABLE, UserError
from tests.support.clusters import logical, soon
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS

LOCAL = """
import sys, time
from orchestrator.cluster.connection import cluster
with cluster(None):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def client() -> int:
    """The port of Ray Client."""
    return free_port()


@pytest.fixture(scope="module")
def address(client: int) -> Iterator[str]:
    node = {"num_cpus": 1, "num_gpus": 2, "ray_client_server_port": client}
    with pytest.MonkeyPatch.context() as monkeypatch, logical(monkeypatch, [node]) as address:
        yield address


def test_functions_of_ray_compat_work_on_a_real_cluster(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ray_compat.canonicalize_bootstrap_address(address) == address
    assert ray_compat.draining_nodes() == ray_compat.nodes_of_job() == set()
    (free,) = ray_compat.available_resources_per_node().values()
    assert free["CPU"] == 1
    ray_compat.kv_put("test/a", "one", namespace=b"test")
    assert ray_compat.kv_list("test/", namespace=b"test") == [b"test/a"]
    assert ray_compat.kv_get("test/a", namespace=b"test") == b"one"
    ray_compat.kv_delete("test/a", namespace=b"test")
    assert ray_compat.kv_get("test/a", namespace=b"test") is None
    ray_compat.print_metadata(address)
    signal.alarm(0)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["gpus"] == 2
    check_versions(address, found["ray_version"], found["python_version"])
    with pytest.raises(UserError, match=r"has other versions than this environment: got Ray 2\.1\.0 on") as caught:
        check_versions(address, "2.1.0", found["python_version"])
    assert caught.value.code == UNAVAILABLE


def test_metadata_over_ray_client_has_versions_and_gpus(address: str, client: int) -> None:
    found = connection.metadata(f"ray://127.0.0.1:{client}")
    assert found is not None
    assert found["gpus"] == 2
    check_versions(address, found["ray_version"], found["python_version"])


def test_local_cluster_listens_on_loopback_and_leftovers_are_ended() -> None:
    driver = subprocess.Popen([sys.executable, "-c", LOCAL], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "up\n"
    ours = [each for each in psutil.process_iter() if mark(each).startswith(f"{driver.pid}:")]
    addresses = {each.laddr.ip for process in ours for each in listening(process)}
    assert addresses
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    (gcs,) = (process for process in ours if "gcs_server" in process.name())
    gcs.kill()
    driver.kill()
    driver.wait(HANG_SECONDS)
    assert any(process.is_running() for process in ours), "no leftover processes to end"
    leftovers.end_leftovers()
    assert soon(lambda: not any(alive(process) for process in ours))


@pytest.mark.faults
def test_local_cluster_warns_if_ray_was_imported_before_orchestrator() -> None:
    """Ray has read its environment variable by then. On a machine without a network there is no warning."""
    first = "import ray, ray.util\n" + LOCAL.replace("    time.sleep(600)", "    print(ray.util.get_node_ip_address())")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    done = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, env=environment, check=True)
    host = done.stdout.split()[-1]
    words = f"listens on {host}, not on this machine alone. Import orchestrator before ray"
    assert (words in done.stderr) == (host != "127.0.0.1")


def mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(leftovers.MARK, ""))
    except (psutil.Error, OSError):
        return ""


def listening(process: psutil.Process) -> list[psutil._common.pconn]:
    return [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # the process ended between the two calls
        return False
