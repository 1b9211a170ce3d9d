"""The job API of a Ray cluster: submit, list, look, follow, stop; every answer comes within seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from orchestrator.cluster import redirects
from orchestrator.cluster.connection import authenticate
from orchestrator.errors import FAILED, UNAVAILABLE, UserError
from orchestrator.jobs.job_state import Job, Lines, read
from orchestrator.tracking.mlflow_globals import preserve_env

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Names the dashboard, for us and for Ray's client."""

CHATTY = ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 30.0  # a head that restarts is back by then; a cluster that is gone took its jobs along
STOP_SECONDS = 60  # Ray's own 3 s are shorter than many epochs: the job could not save


class Dashboard:
    """A Ray cluster's jobs, through Ray's own client.

    Every call raises UserError (exit 3) within seconds when nothing answers or the token is refused.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = dashboard_address(address)
        self._check_alive()
        authenticate()
        with self._asking(), preserve_env(VARIABLE):
            # Ray's client prefers what it finds there to its own argument. No longer than that, or we would take it for
            # the user's: who names no cluster does not expect one to answer.
            os.environ[VARIABLE] = self.address
            from ray.job_submission import JobSubmissionClient

            for chatty in CHATTY:
                logging.getLogger(chatty).setLevel(logging.WARNING)
            self._client = JobSubmissionClient(self.address)

    def submit(
        self,
        entrypoint: str,
        job_id: str,
        *,
        metadata: Mapping[str, str],
        environment: Mapping[str, str],
        working_dir: Path | None = None,
        excludes: Sequence[str] = (),
    ) -> Job:
        """Start a job. ``excludes``: gitignore patterns of what of ``working_dir`` is not sent."""
        variables = {**environment, "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
        runtime_env: dict[str, Any] = {"env_vars": variables}
        if working_dir is not None:
            runtime_env |= {"working_dir": str(working_dir.absolute()), "excludes": list(excludes)}
        with self._asking():
            self._client.submit_job(
                entrypoint=entrypoint, submission_id=job_id, metadata=dict(metadata), runtime_env=runtime_env
            )
        return Job(job_id, "pending", None, metadata.get("command", entrypoint))

    def jobs(self) -> list[Job]:
        """Every submitted job of the cluster, newest first."""
        self._check_alive()
        with self._asking():
            details = [job for job in self._client.list_jobs() if job.submission_id]
        return [read(job) for job in sorted(details, key=lambda job: job.start_time or 0, reverse=True)]

    def job(self, job_id: str) -> Job | None:
        """The job with this submission id, or None."""
        if not re.fullmatch(r"[\w.-]+", job_id):
            return None
        self._check_alive()
        with self._asking():
            try:
                details = self._client.get_job_info(job_id)
            except RuntimeError as error:
                if "status code 404" in str(error):
                    return None
                raise
        if not details.submission_id:  # a driver that was not submitted has no log and cannot be stopped
            return None
        return read(details, self.log(job_id) if details.status.is_terminal() else "")

    def log(self, job_id: str) -> str:
        """The job's log; empty when its node is gone."""
        with self._asking(), suppress(RuntimeError):
            return str(self._client.get_job_logs(job_id))
        return ""

    def wait(self, job: Job) -> Job:
        """The job's end."""
        watch = _Watch(self, job)
        while watch.look().active:
            time.sleep(POLL_SECONDS)
        return watch.job

    def follow(self, job: Job, show: Callable[[str], None]) -> Job:
        """Show the job's log line by line until it has ended; its end."""
        return asyncio.run(self._follow(_Watch(self, job), Lines(show)))

    def stop(self, job: Job) -> Job:
        """Stop the job and wait for its end: it gets :data:`STOP_SECONDS` to save, then Ray kills it.

        Raises UserError (exit 3) when it goes on nevertheless.
        """
        watch, deadline = _Watch(self, job), time.monotonic() + STOP_SECONDS + 15
        while watch.look().active:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{job.id} does not stop", got=watch.job.status, code=UNAVAILABLE,
                    fix=f"See: orchestrator logs {job.id}",
                )  # fmt: skip
            with self._asking():
                self._client.stop_job(job.id)  # again each time: a job that is just starting does not hear it
            time.sleep(POLL_SECONDS)
        return watch.job

    async def _follow(self, watch: _Watch, lines: Lines) -> Job:
        flowing = asyncio.Event()
        stream: asyncio.Task[None] | None = None
        while (await asyncio.to_thread(watch.look)).active:
            if stream is None or stream.done():
                stream = asyncio.create_task(self._stream(watch.job.id, lines, flowing))
            if not flowing.is_set():  # Ray's stream takes seconds to start
                await self._catch_up(watch.job.id, lines)
            await asyncio.sleep(POLL_SECONDS)
        if stream is not None:
            stream.cancel()
            await asyncio.wait({stream})
        await self._catch_up(watch.job.id, lines)  # and to end
        lines.close()
        return watch.job

    async def _stream(self, job_id: str, lines: Lines, flowing: asyncio.Event) -> None:
        at = 0
        with suppress(Exception):  # a broken stream is opened again, whatever broke it
            async for text in self._client.tail_job_logs(job_id):
                lines.feed(text, at)
                at += len(text)
                flowing.set()

    async def _catch_up(self, job_id: str, lines: Lines) -> None:
        with suppress(UserError):
            lines.feed(await asyncio.to_thread(self.log, job_id), 0)

    def _check_alive(self) -> None:
        """Ray's client waits without limit; this does not."""
        try:
            json.loads(redirects.read(f"{self.address}/api/version", ANSWER_SECONDS))["ray_version"]
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):  # it lives, and wants a token
                return
            reason = f"HTTP {error.code}"
        except OSError as error:
            reason = str(getattr(error, "reason", error))
        except (HTTPException, ValueError, KeyError, TypeError):
            reason = "an answer that is not Ray's"
        raise UserError(
            f"No Ray dashboard answers at {self.address}", got=reason, code=UNAVAILABLE,
            fix=f"Start it (ray start --head), or name it with --address or {VARIABLE}",
        )  # fmt: skip

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise UserError(
                f"The Ray at {self.address} asks for its token",
                got=re.split(r"\.+\s|\n", str(error))[0],
                fix="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what "
                "`ray get-auth-token` says on the cluster",
                code=UNAVAILABLE,
            ) from None
        except (RuntimeError, OSError, ValueError) as error:
            last = (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
            raise UserError(f"The Ray at {self.address} cannot do it", got=last, code=UNAVAILABLE) from None


class _Watch:
    """One job, looked at again and again; a short silence of the cluster changes nothing, a long one is its end."""

    def __init__(self, dashboard: Dashboard, job: Job) -> None:
        self.job, self._dashboard, self._answered = job, dashboard, time.monotonic()

    def look(self) -> Job:
        try:
            found = self._dashboard.job(self.job.id)
            self._answered = time.monotonic()
            self.job = found or self._lost("the cluster no longer knows it")
        except UserError as silence:
            if time.monotonic() - self._answered > PATIENCE_SECONDS:
                self.job = self._lost(silence.what)
        return self.job

    def _lost(self, why: str) -> Job:
        return replace(self.job, status="lost", exit_code=FAILED, message=why)


def dashboard_address(given: str | None = None) -> str:
    """``given``, else RAY_API_SERVER_ADDRESS, else an http(s) RAY_ADDRESS, else this machine's. Raises UserError."""
    address = given or configured_address() or DEFAULT_ADDRESS
    url = address if "://" in address else f"http://{address}"
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise UserError("The address is not a dashboard's", got=repr(address), allowed="http(s)://HOST:PORT")
    return url.rstrip("/")


def configured_address() -> str | None:
    """The dashboard that the environment names; RAY_ADDRESS may also name another port of the cluster."""
    cluster = os.environ.get("RAY_ADDRESS", "")
    return os.environ.get(VARIABLE) or (cluster if cluster.startswith("http") else None)
