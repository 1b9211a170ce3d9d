"""Check this machine: packages, devices, Ray, MLflow, storage, data, runs. Starts nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from orchestrator.cli import describe
from orchestrator.cluster import connection, preflight
from orchestrator.console import json_line
from orchestrator.errors import DONE, UNAVAILABLE, UserError, mask, plural
from orchestrator.provenance import machine
from orchestrator.runs import driver_status
from orchestrator.storage import conditional, disk, notifications, remote, run_lookup
from orchestrator.storage.settings import NAMES, Settings, sqlite_file
from workloads.c_compiler import has_compiler
from workloads.data.datasets import DATASETS

Level = Literal["ok", "note", "warning", "problem"]

DISTRIBUTION = "ray-experiment-orchestrator"
TRAINING = "train"
"""The extra without which an installation is a client."""

MAIN = ("ray", "mlflow", "optuna", "torch")
GIB = 2**30
LOW_SPACE = 2 * GIB
SHARED_MEMORY = Path("/dev/shm")
LOW_SHARED_MEMORY = GIB
BUSY_DRIVER = 0.8
NETWORK_SECONDS = 3.0
PROBE_SECONDS = 30.0  # a GPU driver may hang; importing PyTorch from a cold disk may take 10 s

TORCH_PROBE = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"torch": torch.__version__, "build": torch.version.cuda or torch.version.hip,
                  "gpus": [[device.name, device.total_memory] for device in devices]}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``fix`` is empty if ``level`` is ok; a note is about something that is not required."""

    name: str
    level: Level
    text: str
    fix: str = ""


def run(settings: Settings, as_json: bool) -> int:
    """Print all checks and all settings with their sources; return 0, or 3 if there is a problem."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:  # the checks mostly wait
        parts = [pool.submit(_guarded, check, settings) for check in CHECKS]
        checks = [check for part in parts for check in part.result()]
    levels = {check.level for check in checks}
    given = {name: {"value": _shown(settings, name), "source": settings.sources[name]} for name in NAMES}
    if as_json:
        status = "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"
        print(json_line({"status": status, "checks": [asdict(check) for check in checks], "settings": given}))
        return UNAVAILABLE if "problem" in levels else DONE
    for check in checks:
        print(f"{check.level:8} {check.name:9} {check.text}{f'. {check.fix}' if check.fix else ''}")
    width = max(map(len, given))
    print(f"\n{'setting':{width}} {'from':12} value")
    for name, setting in given.items():
        print(f"{name:{width}} {setting['source']:12} {setting['value'] or 'none'}  ({NAMES[name][0]})")
    return UNAVAILABLE if "problem" in levels else DONE


def _shown(settings: Settings, name: str) -> str | None:
    value = getattr(settings, name)
    return None if value is None else notifications.describe(value) if name == "notify" else mask(settings.text(name))


def _guarded(check: Callable[[Settings], Iterable[Check]], settings: Settings) -> list[Check]:
    """The lines of a check, without line breaks and secrets; an exception becomes a line too."""
    name = check.__name__.strip("_")
    lines: list[Check] = []
    try:
        lines.extend(check(settings))
    except UserError as error:
        lines.append(Check(name, "problem", str(error)))
    except Exception as error:
        lines.append(Check(name, "problem", f"could not be checked: {type(error).__name__}: {error}"))
    return [
        Check(line.name, line.level, mask(" ".join(line.text.split())), "" if line.level == "ok" else line.fix)
        for line in lines
    ]


def _packages(_: Settings) -> Iterator[Check]:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    if _installed(DISTRIBUTION) is None:
        yield Check("packages", "warning", f"{DISTRIBUTION} is not installed: its bounds are unknown", "pip install .")
        return
    bounds = SpecifierSet(metadata(DISTRIBUTION)["Requires-Python"])
    python = platform.python_version()
    level: Level = "ok" if python in bounds else "problem"
    yield Check("python", level, f"{python} (needs {bounds})", "Create the environment with such a Python")
    needs = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    extras = ("", TRAINING) if _installed("torch") else ("",)
    needed = {  # Ray is required twice: in the extra with further extras of its own
        need.name: need
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    }
    installed = {name: _installed(name) for name in needed}
    wrong = [
        need
        for name, need in needed.items()
        if not (at := installed[name]) or not need.specifier.contains(at, prereleases=True)
    ]
    for need in wrong:
        text = f"{need.name} {installed[need.name] or 'is not installed'} (needs {need.specifier})"
        need.marker = None
        yield Check("packages", "problem", text, f"pip install '{need}'")
    if not wrong:
        main = ", ".join(f"{name} {installed[name]}" for name in MAIN if name in installed)
        yield Check("packages", "ok", f"{main}; all {len(needed)} within their bounds")
    if TRAINING not in extras:
        fix = f"To train: pip install '{DISTRIBUTION}[{TRAINING}]'"
        yield Check("packages", "note", "this is the client: it submits, lists and promotes", fix)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gpu(_: Settings) -> Iterator[Check]:
    if _installed("torch") is None:
        return
    try:
        torch = _probe(TORCH_PROBE)
    except RuntimeError as error:
        fix = "Check that nvidia-smi works, and install PyTorch again"
        yield Check("gpu", "problem", f"PyTorch cannot list its devices: {error}", fix)
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    build = f"PyTorch {torch['torch']}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}")
    if torch["gpus"]:
        names = ", ".join(f"{name} ({memory / GIB:.0f} GiB)" for name, memory in torch["gpus"])
        yield Check("gpu", "ok", f"{names}; {build}")
        if not has_compiler():
            fix = "Install gcc and Python's headers (python3-dev): SimCLR is trained without torch.compile"
            yield Check("gpu", "note", "no C compiler, or no headers of this Python", fix)
    elif not present or visible is not None:
        cpus = connection.this_machine()[0]["CPU"]
        slow = "" if machine.has_bf16_instructions() else " (matrix products faster in fp32 than in bf16)"
        yield Check("gpu", "ok", f"none visible: training runs on {cpus:g} CPU cores{slow}; {build}")
    else:
        fix = f"Check that nvidia-smi works and its driver supports CUDA {torch['build']}"
        fix = fix if torch["build"] else "Install a CUDA build of PyTorch"
        yield Check("gpu", "problem", f"this machine has {present} that {build} does not see", fix)


def _ray(settings: Settings) -> Iterator[Check]:
    address = settings.ray_address
    installed = version("ray")
    connection.authenticate()
    yield _token()
    if address in (None, "local"):
        node = connection.this_machine()[0]
        devices = f"{node['CPU']:g} CPU, {node['GPU']:g} GPU"
        if not SHARED_MEMORY.is_dir():  # not Linux
            yield Check("ray", "ok", f"{installed}; a local cluster would have {devices}")
            return
        free = shutil.disk_usage(SHARED_MEMORY).free
        devices += f", {free / GIB:.1f} GiB in /dev/shm"
        fix = "Free /dev/shm, or start the container with a larger --shm-size: Ray and NCCL need it"
        level: Level = "ok" if free > LOW_SHARED_MEMORY else "warning"
        yield Check("ray", level, f"{installed}; a local cluster would have {devices}", fix)
        return
    assert address is not None
    connection.check_reachable(address)
    if address.startswith("http"):
        limit = "it accepts jobs, run and sweep need HOST:PORT of the head"
        yield Check("ray", "ok", f"{installed}; {address} answers; {limit}")
        return
    if (theirs := connection.metadata(address)) is None:
        yield Check("ray", "problem", f"no cluster at {address}", "Start it: ray start --head")
        return
    text = f"{address} runs Ray {theirs['ray_version']} on Python {theirs['python_version']}, as needed here"
    yield Check("ray", "ok", text)


def _token() -> Check:
    mode = os.environ.get("RAY_AUTH_MODE", "unset")
    given = os.environ.get("RAY_AUTH_TOKEN")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if given or (path.is_file() and path.stat().st_size):
        return Check("ray token", "ok", f"mode {mode}, token in {'RAY_AUTH_TOKEN' if given else path}")
    if mode == "token":
        fix = "Put the cluster's token there, or create one: ray get-auth-token --generate"
        return Check("ray token", "problem", f"mode token, but there is none in {path}", fix)
    return Check("ray token", "ok", f"mode {mode}, no token in {path}; a local cluster creates one")


def _mlflow(settings: Settings) -> Iterator[Check]:
    uri = settings.tracking
    installed = version("mlflow-skinny")  # of the client too; MLflow itself has the same number
    if uri is None:
        yield Check("mlflow", "ok", f"{installed}; tracking is off")
        return
    preflight.tracking(settings)
    if file := sqlite_file(uri):
        yield _database(file, installed)
    elif uri.startswith("http"):
        theirs = preflight.server_version(uri)
        same = theirs.partition(".")[0] == installed.partition(".")[0]
        fix = "Install the server's major version here, or upgrade the server"
        yield Check("mlflow", "ok" if same else "problem", f"{uri} runs {theirs!r}, and here is {installed}", fix)
    else:
        yield Check("mlflow", "ok", f"{installed}; the server of {uri} answers")


def _database(file: Path, installed: str) -> Check:
    if not file.exists():
        return Check("mlflow", "ok", f"{installed}; the store is created at its first use: {file}")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=NETWORK_SECONDS)) as store:
            runs, models = (
                store.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "registered_models")
            )
    except sqlite3.Error as error:
        return Check("mlflow", "problem", f"the store {file} is damaged or no MLflow store: {error}", "Move it away")
    held = f"{plural(runs, 'run')} and {plural(models, 'registered model')}"
    return Check("mlflow", "ok", f"{installed}; {file} holds {held}")


def _storage(settings: Settings) -> Iterator[Check]:
    disk.check_writable(settings.storage)
    free = shutil.disk_usage(settings.storage).free
    text = f"{settings.remote or settings.storage} can be written, {free / GIB:.1f} GiB free here"
    fix = "Free space, or choose another with ORCHESTRATOR_STORAGE"
    yield Check("storage", "ok" if free > LOW_SPACE else "warning", text, fix)
    if settings.remote and (warning := conditional.warning(remote.Remote(settings.remote))):
        yield Check("storage", "warning", warning)


def _data(settings: Settings) -> Iterator[Check]:
    for dataset in DATASETS.values():
        state = describe.state(dataset, settings.data)
        level: Level = "problem" if state == "damaged" else "note" if state == "missing" else "ok"
        yield Check("data", level, f"{dataset.name} is {state}", describe.remedy(dataset, state) or "")


def _runs(settings: Settings) -> Iterator[Check]:
    every = [(folder, folder.status()) for folder in run_lookup.folders(settings.storage)]
    lost = [folder for folder, status in every if status == "lost"]
    for folder in lost:
        driver = f"pid {folder.record.get('pid')} on {folder.record.get('host')}"
        text = f"{folder.id} is recorded as running, but its driver ({driver}) is gone"
        yield Check("runs", "warning", text, f"Continue with it: {folder.resume_command}")
    if not lost:
        yield Check("runs", "ok", "none is recorded as running without a driver")
    for folder in (folder for folder, status in every if status == "running"):
        if (busy := driver_status.read(folder).get("driver_utilisation")) is not None:
            fix = "Trials wait for the driver: run fewer at once (--concurrency), or longer epochs"
            level: Level = "warning" if busy > BUSY_DRIVER else "ok"
            yield Check("runs", level, f"the driver of {folder.id} is busy {busy:.0%} of the time", fix)


def _probe(code: str, *words: str) -> Any:
    """Run a Python program in another process, so that it cannot stop or block this one; return its JSON output.

    Raises RuntimeError with the last line of the program's errors.
    """
    command = [sys.executable, "-c", code, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {PROBE_SECONDS:g} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or ["no answer"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


CHECKS = (_packages, _gpu, _ray, _mlflow, _storage, _data, _runs)
"""All checks, in the order of the report."""
