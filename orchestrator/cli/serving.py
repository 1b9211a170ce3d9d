"""Serve a registered model with Ray Serve until Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.cli.ui import check_port
from orchestrator.errors import UNAVAILABLE, RunFailed, UserError
from orchestrator.registry import versions
from orchestrator.storage.settings import Settings

NEEDED = ("fastapi", "uvicorn", "starlette", "grpc_reflection")
"""Packages of ``ray[serve]``."""

APPLICATION = "orchestrator"

READY = ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
"""Ray Serve ends an HTTP proxy that is not ready in time, by default 5 s: too short on a busy machine."""


def run(settings: Settings, reference: str, *, host: str, port: int, replicas: int, look_seconds: float) -> None:
    """Serve ``MODEL@ALIAS`` until Ctrl-C, SIGTERM or SIGHUP.

    Raises UserError (exit 3) without Ray Serve's packages, a free port or enough CPUs, and RunFailed if no replica
    starts.
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"Serving needs Ray Serve, of which {' and '.join(missing)} is not installed here",
            fix="Install ray-experiment-orchestrator[serve]", code=UNAVAILABLE,
        )  # fmt: skip
    if replicas < 1:
        raise UserError("--replicas is not valid", got=replicas, allowed="1 or more")
    if not look_seconds > 0:
        raise UserError("--look is not valid", got=f"{look_seconds:g}", allowed="seconds above 0")
    version = versions.find(settings, reference)
    if settings.ray_address is None:  # on a cluster the port is that of its nodes
        check_port(host, port)
    os.environ.setdefault(*READY)
    from ray import serve

    from orchestrator.cluster.connection import cluster
    from orchestrator.registry.serve import build

    args = {"model": reference, "tracking": settings.tracking, "replicas": replicas, "look_seconds": look_seconds}
    with cluster(settings.ray_address) as nodes:
        _check_room(nodes, replicas, list(serve.status().applications))
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
        try:
            _deploy(build(args), version.name)
            print(f"{version.name} ({reference}): http://{host}:{port}/invocations  (Ctrl-C stops it)", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
            with suppress(Exception):
                serve.delete(APPLICATION)  # after the requests under way, which a shutdown cuts off
        finally:
            with suppress(Exception):
                serve.shutdown()


def _check_room(nodes: Sequence[Mapping[str, float]], replicas: int, applications: Sequence[str]) -> None:
    """Raise UserError (exit 3) where another application is served, or the replicas would wait for ever."""
    if applications:
        raise UserError(
            "The cluster serves an application already, which this one would replace", got=", ".join(applications),
            fix="Stop it (serve shutdown), or name another cluster with --ray-address", code=UNAVAILABLE,
        )  # fmt: skip
    cpus = sum(int(node["CPU"]) for node in nodes)
    if replicas > cpus:
        raise UserError(
            f"There are too few CPUs for {replicas} replicas, each of which needs one", got=cpus,
            fix="Request fewer with --replicas", code=UNAVAILABLE,
        )  # fmt: skip


def _deploy(application: Any, model: str) -> None:
    """Wait until the replicas answer. Raises RunFailed with the error of one that does not start."""
    from ray import serve

    try:
        serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        status = serve.status().applications.get(APPLICATION)
        messages = [str(error), *(one.message for one in (status.deployments.values() if status else ()))]
        raise RunFailed(f"Serving {model}", messages[-1].strip().splitlines()[-1]) from None
