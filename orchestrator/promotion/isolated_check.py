"""Check a model version in a clean process: a new interpreter with the model's files and none of our code."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UNAVAILABLE, UserError, missing_module, one_line
from orchestrator.storage import disk
from orchestrator.tracking import store
from orchestrator.tracking.mlflow_globals import PICKLES, tracking_uri_set

PROBE = Path(__file__).with_name("load_probe.py")
CALLS = 50
CALLS_SECONDS = 5.0
SECONDS = 300.0
"""Time limit of loading and predicting together."""

WAITS = (1.0, 5.0, 0.0)
"""Seconds to wait after each failed attempt to fetch files."""

OUTAGE = re.compile(r"time[sd]?[ -]?out|connection|max retries|temporarily|\b50[234]\b", re.IGNORECASE)
"""Matches the errors of artifact stores of any kind that are out of reach."""

FULL = re.compile(f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}")
"""Matches the errors of a disk of this machine that is full."""

SHOWN = 300
"""Characters of a model's error that are reported."""

IMPORTS = "; its file can import installed packages, and your own files by relative imports (from .NAME import ...)"

PASSED_ENVIRONMENT = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *store.QUIET,
)
"""Variables that the clean process gets: no address, no credential, no path of this project."""


class Unusable(Exception):
    """The version's files do not exist, or the model does not load and predict. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a model: size of its files (MB), loading time (s), median time of a call (ms)."""

    megabytes: float
    load_seconds: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of a check: measurements and signature, or the ``error`` that ended it."""

    error: str | None = None
    measured: Measured | None = None
    signature: Any = None


def try_out(client: Any, model: str, version: Any) -> Tried:
    """Fetch a version's files, load the model in a clean process and predict its input example."""
    try:
        with fetched(client, model, version) as folder:
            return Tried(None, measure(folder), _signature(folder))
    except Unusable as error:
        return Tried(str(error))


def signature(client: Any, model: str, version: Any) -> Any:
    """The signature of a version, or None. Raises Unusable when its files do not exist."""
    with fetched(client, model, version, "MLmodel") as folder:
        return _signature(folder)


@contextmanager
def fetched(client: Any, model: str, version: Any, name: str = "") -> Iterator[Path]:
    """A temporary copy of a version's files, or only of the file ``name``.

    Raises Unusable when they do not exist, UserError (exit 3) when their store does not answer or the disk is full.
    """
    import mlflow

    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        uri = "/".join(filter(None, (f"models:/{model}/{version.version}", name)))
        for wait in WAITS:
            try:
                with tracking_uri_set(client.tracking_uri):
                    path = Path(mlflow.artifacts.download_artifacts(uri, dst_path=scratch))
                break
            except Exception as error:  # each kind of store has its own errors for missing files
                reason = one_line(error)[:SHOWN]
                if FULL.search(str(error)):  # MLflow puts the error of a file into the text of its own
                    raise UserError(
                        f"The files of {model}/{version.version} cannot be copied to {scratch}", got=reason,
                        fix="Free space there, or set TMPDIR to another folder", code=UNAVAILABLE,
                    ) from None  # fmt: skip
                if not OUTAGE.search(re.sub(r"\S*/\S*", "", str(error))):  # a path may have such words
                    raise Unusable(f"its files are gone ({reason})") from None
                time.sleep(wait)
        else:
            raise UserError(
                f"The files of {model}/{version.version} could not be fetched from {version.source}: {reason}",
                fix="Try again when MLflow and its artifact store answer",
                code=UNAVAILABLE,
            )
        folder = path if path.is_dir() else path.parent
        if not (folder / "MLmodel").is_file():
            raise Unusable(f"its files are gone ({version.source} holds no MLmodel)")
        yield folder


def measure(folder: Path) -> Measured:
    """Load the model in ``folder`` in a clean process and predict its input example.

    Raises Unusable, and UserError (exit 3) when this environment is a client without the modules that the model needs.
    """
    with tempfile.TemporaryDirectory(prefix="clean-") as scratch:
        result = Path(scratch) / "result.json"
        words = [sys.executable, "-I", "-B", str(PROBE), str(folder), str(result), str(CALLS), str(CALLS_SECONDS)]
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        environment |= {"HOME": scratch, PICKLES: os.environ.get(PICKLES, "false")}
        log = Path(scratch) / "stderr.txt"  # not a pipe: processes that a model starts could keep it open forever
        try:
            with log.open("wb") as errors:
                done = subprocess.run(
                    words, cwd=scratch, env=environment, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=errors
                )
        except subprocess.TimeoutExpired:
            raise Unusable(f"it did not load and predict within {SECONDS:g} s") from None
        if not result.exists():
            last = (disk.last_line(log) or "no message").strip()[-SHOWN:]
            raise Unusable(f"it ends the process that loads it: exit code {done.returncode}, {last}")
        values = json.loads(result.read_text())
    if "error" in values:
        missing = ModuleNotFoundError(name=values["missing"])
        if of_client := missing_module(missing, "The check that the model loads and predicts", submit=True):
            raise of_client
        hint = IMPORTS if values["missing"] else ""
        raise Unusable(f"it does not load and predict: {values['error'].splitlines()[0][:SHOWN]}{hint}")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Measured(size / 1e6, values["load_seconds"], values["milliseconds"])


def _signature(folder: Path) -> Any:
    from mlflow.models import Model

    return Model.load(str(folder)).signature
