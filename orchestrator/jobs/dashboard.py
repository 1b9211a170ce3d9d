"""Client of a Ray cluster's job API: submit, list, follow, stop. Every call answers within seconds."""

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
from orchestrator.storage.settings import preserve_env

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Address of the dashboard, read here and by Ray's client."""

CHATTY = ("ray", "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk")
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 30.0  # a head that restarts is back by then; without an answer the jobs are lost
STOP_SECONDS = 60  # Ray's default of 3 s is shorter than many epochs, too short to save


class Dashboard:
    """A Ray cluster's jobs, through Ray's client.

    Every call raises UserError (exit 3) within seconds when the cluster does not answer or refuses the token.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = dashboard_address(address)
        self._check_alive()
        authenticate()
        with self._requests(), preserve_env(VARIABLE):
            # Ray's client prefers the variable to its argument. It is restored, since we read it as the user's choice.
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
        """Start a job. ``excludes``: gitignore patterns of the files of ``working_dir`` that are not sent."""
        variables = {**environment, "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
        runtime_env: dict[str, Any] = {"env_vars": variables}
        if working_dir is not None:
            runtime_env |= {"working_dir": str(working_dir.absolute()), "excludes": list(excludes)}
        with self._requests():
            self._client.submit_job(
                entrypoint=entrypoint, submission_id=job_id, metadata=dict(metadata), runtime_env=runtime_env
            )
        return Job(job_id, "pending", None, metadata.get("command", entrypoint))

    def jobs(self) -> list[Job]:
        """All submitted jobs of the cluster, newest first."""
        self._check_alive()
        with self._requests():
            details = [job for job in self._client.list_jobs() if job.submission_id]
        return [read(job) for job in sorted(details, key=lambda job: job.start_time or 0, reverse=True)]

    def job(self, job_id: str) -> Job | None:
        """The job with this submission id, or None."""
        if not re.fullmatch(r"[\w.-]+", job_id):
            return None
        self._check_alive()
        with self._requests():
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
        """The job's log; empty when its node no longer exists."""
        with self._requests(), suppress(RuntimeError):
            return str(self._client.get_job_logs(job_id))
        return ""

    def wait(self, job: Job) -> Job:
        """Wait until the job has ended; return its final state."""
        poller = _JobPoller(self, job)
        while poller.poll().active:
            time.sleep(POLL_SECONDS)
        return poller.job

    def follow(self, job: Job, show: Callable[[str], None]) -> Job:
        """Show the job's log line by line until it has ended; return its final state."""
        return asyncio.run(self._follow(_JobPoller(self, job), Lines(show)))

    def stop(self, job: Job) -> Job:
        """Stop the job and wait for its end: it has :data:`STOP_SECONDS` to save, then Ray kills it.

        Raises UserError (exit 3) when it does not end.
        """
        poller = _JobPoller(self, job)
        deadline = time.monotonic() + STOP_SECONDS + 15
        while poller.poll().active:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{job.id} does not stop", got=poller.job.status, code=UNAVAILABLE,
                    fix=f"See: orchestrator logs {job.id}",
                )  # fmt: skip
            with self._requests():
                self._client.stop_job(job.id)  # repeated: a job that is just starting ignores it
            time.sleep(POLL_SECONDS)
        return poller.job

    async def _follow(self, poller: _JobPoller, lines: Lines) -> Job:
        flowing = asyncio.Event()
        stream: asyncio.Task[None] | None = None
        while (await asyncio.to_thread(poller.poll)).active:
            if stream is None or stream.done():
                stream = asyncio.create_task(self._stream(poller.job.id, lines, flowing))
            if not flowing.is_set():  # Ray's stream takes seconds to start
                await self._catch_up(poller.job.id, lines)
            await asyncio.sleep(POLL_SECONDS)
        if stream is not None:
            stream.cancel()
            await asyncio.wait({stream})
        await self._catch_up(poller.job.id, lines)  # the stream may miss the end
        lines.close()
        return poller.job

    async def _stream(self, job_id: str, lines: Lines, flowing: asyncio.Event) -> None:
        at = 0
        with suppress(Exception):  # a broken stream is opened again, whatever the error
            async for text in self._client.tail_job_logs(job_id):
                lines.feed(text, at)
                at += len(text)
                flowing.set()

    async def _catch_up(self, job_id: str, lines: Lines) -> None:
        with suppress(UserError):
            lines.feed(await asyncio.to_thread(self.log, job_id), 0)

    def _check_alive(self) -> None:
        """Raise UserError if the dashboard does not answer within seconds; Ray's client would wait without limit."""
        try:
            json.loads(redirects.read(f"{self.address}/api/version", ANSWER_SECONDS))["ray_version"]
            return
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):  # it is running and requires a token
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
    def _requests(self) -> Iterator[None]:
        """Convert the errors of Ray's client to UserError."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise UserError(
                f"The Ray cluster at {self.address} requires its token",
                got=re.split(r"\.+\s|\n", str(error))[0],
                fix="Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what "
                "`ray get-auth-token` prints on the cluster",
                code=UNAVAILABLE,
            ) from None
        except (RuntimeError, OSError, ValueError) as error:
            last = (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
            raise UserError(f"The request to Ray at {self.address} failed", got=last, code=UNAVAILABLE) from None


class _JobPoller:
    """Polls one job. Failed requests are ignored for :data:`PATIENCE_SECONDS`; after that the job is lost."""

    def __init__(self, dashboard: Dashboard, job: Job) -> None:
        self.job = job
        self._dashboard = dashboard
        self._answered = time.monotonic()

    def poll(self) -> Job:
        try:
            current = self._dashboard.job(self.job.id)
            self._answered = time.monotonic()
            self.job = current or self._lost("the cluster no longer lists it")
        except UserError as error:
            if time.monotonic() - self._answered > PATIENCE_SECONDS:
                self.job = self._lost(error.what)
        return self.job

    def _lost(self, why: str) -> Job:
        return replace(self.job, status="lost", exit_code=FAILED, message=why)


def dashboard_address(given: str | None = None) -> str:
    """``given``, else RAY_API_SERVER_ADDRESS, else an http(s) RAY_ADDRESS, else this machine's. Raises UserError."""
    address = given or configured_address() or DEFAULT_ADDRESS
    url = address if "://" in address else f"http://{address}"
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise UserError("Invalid dashboard address", got=repr(address), allowed="http(s)://HOST:PORT")
    return url.rstrip("/")


def configured_address() -> str | None:
    """The dashboard address in the environment; RAY_ADDRESS counts only if it is http(s), not the cluster's port."""
    cluster = os.environ.get("RAY_ADDRESS", "")
    return os.environ.get(VARIABLE) or (cluster if cluster.startswith("http") else None)
