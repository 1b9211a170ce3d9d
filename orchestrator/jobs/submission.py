"""Submit a command as a Ray job; list the jobs of a cluster."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.config.parsing import option_values
from orchestrator.console import Console, json_line
from orchestrator.errors import DONE, FAILED, INTERRUPTED, UserError, mask, unknown
from orchestrator.jobs import excludes
from orchestrator.jobs.dashboard import Dashboard
from orchestrator.jobs.job_state import Job
from orchestrator.provenance import record as provenance
from orchestrator.provenance.scrub import scrub_words
from orchestrator.provenance.source import Source
from orchestrator.storage.settings import NAMES, Settings, resolve

VERBS = ("run", "sweep", "promote", "rollback", "predict", "reproduce", "workloads", "data", "doctor", "sync")

NAMED = re.compile(r"(?:Run|Sweep) ([\w.-]+):")
"""A log's line that names the run or sweep."""

SHOWN = 5
"""How many of the secret files that are not sent are named in the output."""


def submit(
    words: list[str],
    *,
    address: str | None = None,
    working_dir: Path | None = None,
    queue: str | None = None,
    priority: str | None = None,
    wait: bool = True,
    as_json: bool = False,
) -> int:
    """Submit ``orchestrator <words>``; with ``wait`` show its log and return its own exit code.

    The settings of this environment are sent with the job, and the ``queue`` and ``priority`` with which it shares
    the cluster. Credentials are not sent; set them in the cluster's environment. Ctrl-C while waiting leaves the job
    running and returns 130. Raises UserError: exit 2 for the words, 3 for the cluster.
    """
    _check(words, working_dir)
    settings = resolve({"queue": queue, "priority": priority})
    workload = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
    sources = provenance.sources(working_dir, (settings.home, settings.storage), workload)
    dashboard = Dashboard(address)
    console = Console(json=as_json)
    excluded = working_dir and excludes.find_excluded(working_dir, (settings.home, settings.storage, settings.data))
    job = dashboard.submit(
        shlex.join(["python", "-m", "orchestrator", *words]),
        new_id(words),
        metadata=_metadata(words, sources, settings),
        environment=_environment(settings) | provenance.carry(sources),
        working_dir=working_dir,
        excludes=excluded.patterns if excluded else (),
    )
    console.say(f"Submitted {job.id} to {dashboard.address}")
    if excluded and excluded.secret:
        more = len(excluded.secret) - SHOWN
        names = ", ".join(excluded.secret[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        console.say(f"Not sent, because their names say that they are secret: {names}")
    if settings.notify:
        console.say(
            "ORCHESTRATOR_NOTIFY is a secret and not sent; for notifications set it in the cluster's environment"
        )
    code = DONE
    if wait:
        try:
            job = follow(dashboard, job, console.say)
            code = FAILED if job.exit_code is None else job.exit_code
            if job.status != "lost":  # else it was reported
                console.say(end_of(job))
        except KeyboardInterrupt:
            code = INTERRUPTED
            console.say(f"\nStopped following; {job.id} is still running.")
            with suppress(UserError):
                job = dashboard.job(job.id) or job
    if job.active:
        where = f" --address {address}" if address else ""
        console.say("Next:")
        for verb in ("logs -f", "status --wait", "stop"):
            console.say(f"  orchestrator {verb} {job.id}{where}")
    if as_json:
        print(json_line({"id": job.id, "status": job.status, "exit_code": job.exit_code}), flush=True)
    return code


def follow(dashboard: Dashboard, job: Job, say: Callable[[str], None]) -> Job:
    """Show the job's log until it has ended, and how to continue if it is lost; return its final state."""
    log: list[str] = []

    def show(line: str) -> None:
        if NAMED.match(line):
            log.append(line)
        say(line)

    job = dashboard.follow(job, show)
    if job.status == "lost":
        say(end_of(job))
        if command := resume_command(job, log):
            say("Finished epochs and trials are saved. Continue on this cluster or another with:")
            say(f"  {command}")
    return job


def resume_command(job: Job, log: Iterable[str] = ()) -> str | None:
    """The command that continues the run or sweep of a lost job, else None.

    Its name is that of --name or --resume, else the first that the lines of ``log`` name, else ``latest``. The storage
    and the tracking server are those of the job's command.
    """
    command = re.match(r"(?:\S+ -m )?orchestrator (run|sweep)\b(.*)", job.command)
    if job.status != "lost" or command is None:
        return None
    given = option_values(shlex.split(command[2]))
    names = [given.get("--name"), given.get("--resume"), *(match[1] for match in map(NAMED.match, log) if match)]
    name = next((name for name in names if name and name != "latest"), "latest")
    kept = [f"{option} {shlex.quote(given[option])}" for option in ("--storage", "--tracking") if option in given]
    return " ".join([f"orchestrator submit -- {command[1]} --resume {shlex.quote(name)}", *kept])


def list_jobs(*, address: str | None = None, as_json: bool = False) -> None:
    """Print the jobs of the cluster, newest first. Raises UserError."""
    dashboard = Dashboard(address)
    jobs = dashboard.jobs()
    if as_json:
        print(json_line([asdict(job) for job in jobs]))
    elif jobs:
        _print_table(f"Jobs at {dashboard.address}, times in UTC", jobs)
    else:
        print(f"No job yet at {dashboard.address}. Submit one: orchestrator submit -- run recommender")


def end_of(job: Job) -> str:
    """One line on how a job ended."""
    text = f"{job.id} {'is lost' if job.status == 'lost' else job.status} (exit code {job.exit_code})"
    return f"{text}: {job.message}" if job.message else text


def new_id(words: list[str]) -> str:
    """A new submission id, such as ``sweep-recommender-20261121-083000-ab12``."""
    names = [word for word in words[:2] if re.fullmatch(r"\w[\w.-]*", word)]
    return "-".join([*names, f"{datetime.now(UTC):%Y%m%d-%H%M%S}", secrets.token_hex(2)])


def _check(words: list[str], working_dir: Path | None) -> None:
    if not words:
        raise UserError("There is nothing to submit", fix="Try: orchestrator submit -- sweep recommender --trials 8")
    if words[0] not in VERBS:
        raise unknown("verb to submit", words[0], VERBS)
    if any(mask(word) != word for word in words):
        raise UserError(
            "The command holds a password, and Ray shows a job's command to everyone",
            fix="Set MLFLOW_TRACKING_URI in the cluster's environment instead",
        )
    target = option_values(words).get("--output")
    if words[0] == "predict" and target and not Path(target).is_absolute():
        raise UserError(
            "The output of a job is written below the job's own folder on the cluster", got=target,
            fix="Name it with its whole path, in a folder that you can read too",
        )  # fmt: skip
    if working_dir is not None and not working_dir.is_dir():
        raise UserError("The working directory is not a directory", got=working_dir)


def _metadata(words: list[str], sources: Sequence[Source], settings: Settings) -> dict[str, str]:
    from orchestrator.runs.session import identity_tags

    tags = identity_tags(sources)
    metadata = {
        "command": shlex.join(["orchestrator", *scrub_words(words)]),
        "user": tags["mlflow.user"],
        "queue": settings.queue,
        "priority": str(settings.priority),
    }
    if commit := tags.get("mlflow.source.git.commit"):
        metadata["commit"] = commit
    return metadata


def _environment(settings: Settings) -> dict[str, str]:
    """The settings that the environment or a flag sets here, as variables for the job, without the Ray address.

    Raises UserError for a tracking address with a password: everyone on the cluster can read a job's variables.
    """
    if settings.tracking and mask(settings.tracking) != settings.tracking:
        raise UserError(
            "MLFLOW_TRACKING_URI holds a password, and everyone on the cluster can read a job's variables",
            fix="Set it in the cluster's environment and not here, or name a tracking server",
        )
    return {
        variable: settings.text(name)
        for name, (variable, _) in NAMES.items()
        if settings.sources[name] in ("environment", "flag") and name not in ("ray_address", "notify")
    }


def _print_table(title: str, jobs: list[Job]) -> None:
    from rich.console import Console as Rich
    from rich.table import Table

    rich = Rich() if Rich().is_terminal else Rich(width=200)
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)  # easy to copy
    for name in ("status", "exit", "started", "queue"):
        table.add_column(name)
    wide = rich.width >= 120
    if wide:
        table.add_column("command", overflow="fold")
    for job in jobs:
        code = "" if job.exit_code is None else str(job.exit_code)
        started = (job.started or "")[:16].replace("T", " ")
        queue = "" if job.queue is None else f"{job.queue} x{job.priority}"
        cells = [job.id, job.status, code, started, queue]
        if wide:
            cells.append(job.command)
        table.add_row(*cells)
    rich.print(table)
