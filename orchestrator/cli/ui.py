"""Serve MLflow's UI on the configured store."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.errors import UNAVAILABLE, UserError, mask, of_client
from orchestrator.storage.settings import Settings
from orchestrator.tracking import store


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve MLflow's UI on the configured store until Ctrl-C; for a tracking server, only print its address.

    Raises UserError (exit 3) when the port cannot be opened, the server does not start, or this is a client.
    """
    if settings.tracking is None:
        raise UserError("There is no UI with tracking off", fix="Leave out --tracking, or name a store")
    if settings.tracking.startswith("http"):
        print(mask(settings.tracking))
        return
    if importlib.util.find_spec("flask") is None:  # the client's mlflow-skinny has the server's modules without it
        raise of_client("The UI needs MLflow's server", submit=False)
    artifacts = store.ensure(settings.tracking, settings.home)
    check_port(host, port)
    _run_server(settings.tracking, artifacts, host, port)


def check_port(host: str, port: int) -> None:
    """Raise UserError (exit 3) if the port cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"Port {port} of {host} cannot be opened ({error.strerror or error})",
            fix="Choose another with --port, or another address with --host", code=UNAVAILABLE,
        ) from None  # fmt: skip


LOOPBACK = ("127.0.0.1", "::1", "localhost")

TRAINING_VIEW = "/#/experiments?workflowType=machine_learning"
"""Page of MLflow's UI that lists the experiments, in the view of model training: 3.17 begins with that of agents."""


def on_network(host: str, port: int) -> dict[str, str]:
    """Variables with which MLflow's server answers pages from the names and addresses of this machine.

    By default it refuses names, and from addresses the requests of its own page. Empty on loopback, which needs none.
    """
    if host in LOOPBACK:
        return {}
    from mlflow.server.security_utils import get_default_allowed_hosts

    interfaces = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    addresses = {each.address for each in interfaces if each.family == socket.AF_INET}
    shown = f"[{host}]" if ":" in host else host
    names = sorted({shown, socket.gethostname(), socket.getfqdn(), *addresses})
    hosts = [*get_default_allowed_hosts(), *names, *(f"{name}:{port}" for name in names)]
    origins = [f"http://{name}{'' if port == 80 else f':{port}'}" for name in names]
    return {"MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts), "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins)}


def _run_server(uri: str, artifacts: Path | None, host: str, port: int) -> None:
    environment = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # would start eight more processes that are not needed
        "PYTHONWARNINGS": "ignore",
        **on_network(host, port),
        **os.environ,
        # Not on the command line, where everyone could read a password.
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_REGISTRY_STORE_URI": uri,
        **({"MLFLOW_DEFAULT_ARTIFACT_ROOT": str(artifacts)} if artifacts else {}),
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # In a session of its own, so that Ctrl-C reaches only this process, which then ends the server.
    server = subprocess.Popen(command, env=environment, start_new_session=True, stdout=sys.stderr)
    try:
        while server.poll() is None and not _answers(host, port):
            time.sleep(0.1)
        if server.returncode is None:
            shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
            print(f"MLflow UI: {address}{TRAINING_VIEW}  (Ctrl-C stops it)", flush=True)
        code = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    raise UserError("MLflow's server has stopped", got=f"exit code {code}", code=UNAVAILABLE)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
