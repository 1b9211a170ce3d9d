"""A Ray Serve application around a registered model: batched, in replicas, with a health check, following its alias.

``POST /invocations`` takes and gives what MLflow's own server does. ``GET /health`` says which version answers. An
alias that moves is followed: each replica loads the new version next to the present one, lets it predict its example,
and then answers with it; a version that fails is reported by ``/health``, and the present one stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orchestrator.errors import one_line
from orchestrator.registry import models as registry
from orchestrator.registry.served_model import answers, current, load
from orchestrator.registry.serving_formats import BadRequest, as_json, frame_of
from orchestrator.storage.settings import resolve

POLL_SECONDS = 5.0
"""Time between two polls of the alias."""

MAX_MEGABYTES = 64
"""Size of a request's body, at most. All requests in progress are held in memory."""

BATCH_ROWS = 256
"""Requests that one call of the model answers, at most."""

BATCH_SECONDS = 0.005
"""Time that a request waits for others."""


class Replica:
    """Answers requests with the version that the reference names now."""

    def __init__(self, reference: str, tracking: str | None = None, look_seconds: float = POLL_SECONDS) -> None:
        self._settings = resolve({"tracking": tracking})
        self._reference = reference
        self._look_seconds = look_seconds
        self._served = load(self._settings, current(self._settings, reference))
        self._trouble: str | None = None
        self._refused: str | None = None
        self._following = asyncio.get_event_loop().create_task(self._follow())

    async def __call__(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse(self.state())
        try:
            body = await _read(request)
            if body is None:
                error = f"the request is larger than {MAX_MEGABYTES} MB; send its rows in several"
                return JSONResponse({"error": error}, status_code=413)
            frame, params = frame_of(body, request.headers.get("content-type", ""), self._served.columns)
            answer = as_json(await self.predict((frame, params)))  # raises what the model refuses
        except BadRequest as error:
            return JSONResponse({"error": one_line(error)}, status_code=400)
        return Response(answer, media_type="application/json")

    @serve.batch(max_batch_size=BATCH_ROWS, batch_wait_timeout_s=BATCH_SECONDS)  # type: ignore[untyped-decorator]
    async def predict(self, requests: Sequence[tuple[pd.DataFrame, Mapping[str, Any]]]) -> list[Any]:
        """The predictions of each request, or the error of its input, by the model in a thread."""
        return await asyncio.to_thread(answers, self._served, requests)

    def state(self) -> dict[str, Any]:
        """What ``/health`` answers."""
        return {"model": self._reference, "version": self._served.version, "trouble": self._trouble}

    def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose alias is followed no more."""
        if self._following.done():
            raise RuntimeError("the alias is not followed any more")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            uri = None
            try:
                uri = await asyncio.to_thread(current, self._settings, self._reference)
                if uri not in (self._served.uri, self._refused):
                    self._served = await asyncio.to_thread(load, self._settings, uri)
                if uri == self._served.uri:
                    self._trouble = self._refused = None
            except registry.outage_errors() as error:  # asked again
                self._note(error)
            except Exception as error:  # a version that does not work: the present one stays
                self._note(error)
                self._refused = uri

    def _note(self, error: Exception) -> None:
        self._trouble = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {one_line(error)}"


async def _read(request: Request) -> bytes | None:
    """The body of a request, read to its end; None, and not held in memory, if it is too large."""
    body: bytearray | None = bytearray()
    async for part in request.stream():
        if body is not None:
            body += part
            if len(body) > MAX_MEGABYTES << 20:
                body = None
    return None if body is None else bytes(body)


def build(args: Mapping[str, Any]) -> serve.Application:
    """The application, as ``serveConfigV2`` of a RayService names it: ``orchestrator.registry.serve:build``.

    ``args``: ``model`` (MODEL@ALIAS), ``tracking``, ``replicas``, ``look_seconds``; all but the first optional.
    """
    options = {"num_replicas": int(args.get("replicas", 1)), "max_ongoing_requests": 2 * BATCH_ROWS}
    deployment = serve.deployment(Replica).options(name="model", health_check_period_s=5, **options)
    app: serve.Application = deployment.bind(
        args["model"], args.get("tracking"), float(args.get("look_seconds", POLL_SECONDS))
    )
    return app
