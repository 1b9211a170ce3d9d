"""Serve a registered model with Ray Serve until Ctrl-C."""

from __future__ import annotations

import importlib.util
import signal
import threading
from contextlib import suppress

from orchestrator.cli.ui import check_port
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.registry import versions
from orchestrator.storage.settings import Settings

NEEDED = ("fastapi", "uvicorn", "starlette", "grpc_reflection")
"""Packages of ``ray[serve]``."""


def run(settings: Settings, reference: str, *, host: str, port: int, replicas: int, look_seconds: float) -> None:
    """Serve ``MODEL@ALIAS``. Raises UserError, with exit 3 without Ray Serve's packages or a free port."""
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
    from ray import serve

    from orchestrator.cluster.connection import cluster
    from orchestrator.registry.serve import build

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *of: stopped.set())
    args = {"model": reference, "tracking": settings.tracking, "replicas": replicas, "look_seconds": look_seconds}
    with cluster(settings.ray_address):
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
        try:
            serve.run(build(args), name="orchestrator", route_prefix="/")
            print(f"{version.name} ({reference}): http://{host}:{port}/invocations  (Ctrl-C stops it)", flush=True)
            stopped.wait()
        finally:
            with suppress(Exception):
                serve.shutdown()
