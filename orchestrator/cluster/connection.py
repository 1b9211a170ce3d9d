"""Connect to a Ray cluster, or start a local one, for the duration of one command."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.cluster import leftovers, session_folder
from orchestrator.cluster.interrupts import keep_sigterm_handler, sighup_blocked
from orchestrator.config.spec import Resources
from orchestrator.errors import UNAVAILABLE, UserError, one_line
from workloads.cpus import usable_cpus

QUIET = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is handled in interrupts.py
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",  # a sweep resumes from its journal; Tune's pickles are never read
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}

Node = dict[str, float]

TOKEN = Path("~/.ray/auth_token")
"""The file of this user's Ray token."""

TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables that Ray reads before that file."""

RAY_PROBE = "import sys; from orchestrator.cluster.ray_compat import print_metadata; print_metadata(sys.argv[1])"

CLIENT_PROBE = """
import json, sys, ray
with ray.init(sys.argv[1], log_to_driver=False) as there:
    gpus = ray.cluster_resources().get("GPU", 0)
print(json.dumps({"ray_version": there.ray_version, "python_version": there.python_version, "gpus": gpus}))
"""
"""As RAY_PROBE, through Ray Client, which refuses other versions itself."""

PROBE_SECONDS = 15
CLIENT_SECONDS = 120
"""Time limits of the probes. A client's server in the cluster is a process that has to start."""

CLIENT_SERVER_FAILED = re.compile(r"Starting Ray client server failed|psutil\.(ZombieProcess|NoSuchProcess)")
"""What Ray says where the process ended, or where it cannot read the command line of the ended process."""

CLIENT_ATTEMPTS = 3
"""How often the cluster is asked to start that server: on a busy head its process sometimes ends while it starts."""

KEPT_SECONDS = 60
"""Time for which a cluster's answer is used again. In a notebook it may be restarted, or get GPUs."""

_answers: dict[str, tuple[float, dict[str, Any]]] = {}
"""Time and answer by address."""


START_TIMED_OUT = "timed out during startup"
"""What Ray says where a local cluster's node has not registered within 30 s, which cannot be configured."""

START_ATTEMPTS = 3
"""How often a local cluster is started that needs longer: on a busy machine Ray's processes wait for the processor."""


@contextmanager
def cluster(address: str | None) -> Iterator[list[Node]]:
    """Connect, yield the resources of each live node, and disconnect (or stop the local cluster) at the end.

    If this process is already connected to Ray, as in a notebook, that connection is used and kept. Raises UserError
    (exit 3) within seconds when nothing answers at ``address``, and KeyboardInterrupt on SIGTERM while connecting.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address:
        authenticate()
        check_reachable(address)
        check_is_ray(address)
    import ray

    for name in ("ray", "ray.tune", "ray.train"):  # Ray still logs to its own files
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield nodes()
        return
    try:
        if not address:
            make_token()
            leftovers.end_leftovers()
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                _init(address)
                break
            except Exception as error:
                if address or START_TIMED_OUT not in str(error) or attempt == START_ATTEMPTS:
                    raise
                warnings.warn("Ray did not start within its 30 s on this machine. It is started again", stacklevel=3)
                ray.shutdown()
                leftovers.end_own()  # Ray leaves them
        if not address:
            with suppress(OSError):  # on a file system without links, Ray has created the token
                TOKEN.expanduser().chmod(0o600)
    except Exception as error:  # Ray raises a plain Exception when a node does not start in time
        ray.shutdown()
        raise UserError(
            f"Cannot connect to a Ray cluster at {address}: {one_line(error)}"
            if address
            else f"Cannot start a Ray cluster on this machine: {one_line(error)}",
            fix="Check RAY_ADDRESS or --ray-address; unset, a local cluster is started", code=UNAVAILABLE,
        ) from None  # fmt: skip
    except KeyboardInterrupt:
        ray.shutdown()  # stop what was started
        raise
    try:
        if not address:
            warn_of_network(ray.nodes()[0]["NodeManagerAddress"])
        yield nodes()
    finally:
        ray.shutdown()


def _init(address: str | None) -> None:
    import ray

    with keep_sigterm_handler(), ExitStack() as local:
        if not address:
            local.enter_context(sighup_blocked())
            local.enter_context(leftovers.marked())
            local.enter_context(session_folder.private())
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )


def warn_of_network(host: str) -> None:
    """Warn if a local cluster listens on more than this machine, as when Ray was imported before this package."""
    if host not in ("127.0.0.1", "::1"):
        warnings.warn(
            f"The local Ray cluster listens on {host}, not on this machine alone. Import orchestrator before ray, or "
            "set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0",
            stacklevel=2,
        )


def make_token() -> None:
    """Create the token of local clusters with mode 0600. Ray would create it with the umask's mode.

    An existing token is kept and gets that mode. If the file cannot be created, Ray reports it.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or any(map(os.environ.get, TOKEN_VARIABLES)):
        return
    token = TOKEN.expanduser()
    complete = token.with_name(f".{token.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        if not token.exists():
            token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with open(os.open(complete, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32))
                with suppress(FileExistsError):  # another process created it first
                    os.link(complete, token)  # atomic, so that no process reads a partial token
            finally:
                complete.unlink(missing_ok=True)
        token.chmod(0o600)


def nodes() -> list[Node]:
    """CPU and GPU totals of each live node."""
    return list(nodes_by_id().values())


def nodes_by_id() -> dict[str, Node]:
    """As :func:`nodes`, by Ray's id of each node."""
    import ray

    return {
        node["NodeID"]: {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    }


NO_GPU = ("", "-1", "NoDevFiles")
"""Names in CUDA_VISIBLE_DEVICES that hide all GPUs; the last is Slurm's."""


def this_machine() -> list[Node]:
    """Resources that a local cluster would have, without starting one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if visible is not None:
        gpus = min(gpus, sum(name.strip() not in NO_GPU for name in visible.split(",")))
    return [{"CPU": float(usable_cpus()), "GPU": float(gpus)}]


def slots(available: Sequence[Node], resources: Resources) -> int:
    """Number of trials that fit at once. The workers of a trial may be on several nodes.

    An elastic run counts with its minimum number of workers.
    """
    return workers_that_fit(available, resources) // resources.fewest_workers


def workers_that_fit(available: Sequence[Node], resources: Resources) -> int:
    """Number of workers that fit, counted per node."""
    workers = 0
    for node in available:
        fitting = int(node["CPU"] / resources.cpus_per_worker + 1e-9)
        if gpus := resources.gpus_per_worker:
            shared = int(1 / gpus + 1e-9) if gpus < 1 else 1  # a fraction is taken from one device
            fitting = min(fitting, int(node["GPU"] / max(gpus, 1)) * shared)
        workers += fitting
    return workers


def check_fit(available: Sequence[Node], resources: Resources, *, here: bool = False) -> int:
    """Return the number of trials that fit. Raises UserError (exit 3) with the arithmetic when none does.

    ``here``: the message names this machine instead of a cluster.
    """
    fitting = slots(available, resources)
    if fitting < 1:
        need = f"{resources.cpus_per_worker:g} CPU"
        if resources.gpus_per_worker:
            need += f" + {resources.gpus_per_worker:g} GPU"
        has = "; ".join(f"{node['CPU']:g} CPU, {node['GPU']:g} GPU" for node in available) or "no node"
        raise UserError(
            "This machine is too small" if here else "The cluster is too small",
            got=f"{'at least ' if resources.min_workers else ''}{resources.fewest_workers} worker(s) of {need} each",
            allowed=f"what it has: {has}" if here else f"what its {len(available)} node(s) have: {has}",
            fix="Request fewer with --workers, --cpus-per-worker or --gpus-per-worker",
            code=UNAVAILABLE,
        )
    return fitting


def authenticate() -> None:
    """Use this user's token file. Ray itself does so only for clusters that it starts."""
    if "RAY_AUTH_MODE" not in os.environ and TOKEN.expanduser().exists():
        os.environ["RAY_AUTH_MODE"] = "token"


def check_is_ray(address: str) -> float | None:
    """Check that a Ray cluster answers, accepts the token and has our versions, as :func:`metadata` does.

    Returns the number of its GPUs, None if that is not known.
    """
    if address.startswith("http"):  # for jobs, with time limits of its own
        return None
    answer = metadata(address)
    return float(answer["gpus"]) if answer else None


def metadata(address: str) -> Mapping[str, Any] | None:
    """Versions (``ray_version``, ``python_version``) and ``gpus`` of the Ray cluster at ``address``.

    Asks in another process: ``ray.init`` would try for minutes. An answer is kept for :data:`KEPT_SECONDS`. None if
    ``auto`` finds no cluster. Raises UserError (exit 3) for a cluster that refuses the token or has other versions, and
    for what is none.
    """
    now = time.monotonic()
    if address in _answers and now - _answers[address][0] < KEPT_SECONDS:
        return _answers[address][1]
    if answer := _ask(address):
        _answers[address] = now, answer
    return answer


def _ask(address: str) -> dict[str, Any] | None:
    """As :func:`metadata`, without earlier answers."""
    for _ in range(CLIENT_ATTEMPTS):
        answer, trouble = _probe(address)
        if not CLIENT_SERVER_FAILED.search(trouble):
            break
    if "AuthenticationError" in trouble:
        raise UserError(
            f"The Ray cluster at {address} requires its token",
            got="another" if os.environ.get("RAY_AUTH_MODE") == "token" else "none",
            fix="Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token",
            code=UNAVAILABLE,
        )
    if there := re.search(r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)", trouble):  # as Ray Client says it
        check_versions(address, *there.groups())
    if trouble:
        fix = "Correct the port (ray start shows it)"
        reason = trouble.splitlines()[-1]
        if CLIENT_SERVER_FAILED.search(trouble):
            raise UserError(
                f"The Ray cluster at {address} could not start a server for this client ({reason})",
                fix="Look at that log on the head node, under /tmp/ray/session_latest/logs",
                code=UNAVAILABLE,
            )
        raise UserError(f"{address} answers, but is not a Ray cluster ({reason})", fix=fix, code=UNAVAILABLE)
    if answer and not address.startswith("ray://"):  # Ray Client admits another patch release of Python
        check_versions(address, answer["ray_version"], answer["python_version"])
    return answer


def _probe(address: str) -> tuple[dict[str, Any] | None, str]:
    """Versions and GPUs of the cluster at ``address``, None if there is none, and the error, empty if there is none."""
    client = address.startswith("ray://")
    seconds = CLIENT_SECONDS if client else PROBE_SECONDS
    command = [sys.executable, "-c", CLIENT_PROBE if client else RAY_PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {seconds} s"
    if done.returncode == -signal.SIGTERM:  # the signal was meant for this process too
        raise KeyboardInterrupt
    if done.returncode:
        return None, done.stderr.strip() or "no answer"
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None, ""


def check_versions(address: str, ray_version: str, python_version: str) -> None:
    """Check that the cluster has this process' versions of Ray and Python. Raises UserError (exit 3)."""
    there = (ray_version, python_version)
    here = (version("ray"), platform.python_version())
    if there != here:
        theirs, ours = (f"Ray {ray} on Python {python}" for ray, python in (there, here))
        raise UserError(
            f"The cluster at {address} has other versions than this environment", got=theirs, allowed=ours,
            fix=f"Install ray=={ray_version} on Python {python_version}, or start the cluster with this environment",
            code=UNAVAILABLE,
        )  # fmt: skip


def check_reachable(address: str) -> None:
    """Check that something listens at ``address``. Raises UserError (exit 3) within seconds."""
    if address in ("auto", "local"):
        return
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        port = parts.port or {"ray": 10001, "http": 8265, "https": 443}.get(parts.scheme, 6379)
        with socket.create_connection((parts.hostname or "", port), timeout=3):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"No Ray answers at {address} ({error})", code=UNAVAILABLE,
            fix="Start it (ray start --head), correct RAY_ADDRESS or --ray-address, or unset it for a local cluster",
        ) from None  # fmt: skip
