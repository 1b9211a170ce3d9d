"""The server of MLflow's UI."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request

from orchestrator.cli.ui import on_network


@pytest.mark.parametrize("host", ["0.0.0.0", "gpu-box"])
def test_only_hosts_and_origins_of_this_machine_are_allowed(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "gpu-box.lab")
    address = SimpleNamespace(family=socket.AF_INET, address="10.0.0.7")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [address]})
    hosts, origins = (value.split(",") for value in on_network(host, 5000).values())
    for name in ("gpu-box:5000", "gpu-box.lab:5000", "10.0.0.7:5000", "localhost:5000"):
        assert is_allowed_host_header(hosts, name)
        assert not should_block_cors_request(f"http://{name}", "POST", origins)
    assert not is_allowed_host_header(hosts, "evil.example:5000")
    assert should_block_cors_request("http://evil.example:5000", "POST", origins)


def test_loopback_host_sets_no_allowed_hosts_or_origins() -> None:
    assert on_network("127.0.0.1", 5000) == {}
