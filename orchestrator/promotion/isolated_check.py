"""A model version tried out in a clean process: a fresh interpreter, the model's own files, nothing of ours."""

from __future__ import annotations

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

from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.tracking import store
from orchestrator.tracking.mlflow_globals import PICKLES

PROBE = Path(__file__).with_name("load_probe.py")
CALLS = 50
CALLS_SECONDS = 5.0
SECONDS = 300.0
"""How long loading and predicting may take together."""

WAITS = (1.0, 5.0, 0.0)
"""Seconds after each attempt to fetch files from a store that does not answer."""

SILENCE = re.compile(r"time[sd]?[ -]?out|connection|max retries|temporarily|\b50[234]\b", re.IGNORECASE)
"""What an artifact store's errors say when it is out of reach, whatever kind of store it is."""

SHOWN = 300
"""Characters of what a model says that are told."""

PASSED_ENVIRONMENT = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *store.QUIET,
)
"""What the clean process sees of this environment: no address, no credential, no path of ours."""


class Unusable(Exception):
    """The version's files are gone, or the model does not load and predict; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model is like in use: its files (MB), loading (s), a call with its input example (ms, the median)."""

    megabytes: float
    load_seconds: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Tried:
    """How a version did: what was measured and its signature, or the ``trouble`` that stopped it."""

    trouble: str | None = None
    measured: Measured | None = None
    signature: Any = None


def try_out(client: Any, model: str, version: Any) -> Tried:
    """Fetch a model version's files, load them in a clean process and predict the input example."""
    try:
        with fetched(client, model, version) as folder:
            return Tried(None, measure(folder), _signature(folder))
    except Unusable as error:
        return Tried(str(error))


def signature(client: Any, model: str, version: Any) -> Any:
    """The signature of a model version; None where it has none. Raises Unusable when its files are gone."""
    with fetched(client, model, version, "MLmodel") as folder:
        return _signature(folder)


@contextmanager
def fetched(client: Any, model: str, version: Any, name: str = "") -> Iterator[Path]:
    """A copy of a model version's files, or of the one named.

    Raises Unusable when they are gone, UserError (exit 3) when their store does not answer: that is no verdict.
    """
    import mlflow

    mlflow.set_tracking_uri(client.tracking_uri)
    mlflow.set_registry_uri(client.tracking_uri)
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        uri = "/".join(filter(None, (f"models:/{model}/{version.version}", name)))
        for wait in WAITS:
            try:
                found = Path(mlflow.artifacts.download_artifacts(uri, dst_path=scratch))
                break
            except Exception as error:  # each kind of storage has its own ways to say that there is nothing
                told = one_line(error)[:SHOWN]
                if not SILENCE.search(str(error)):
                    raise Unusable(f"its files are gone ({told})") from None
                time.sleep(wait)
        else:
            raise UserError(
                f"The files of {model}/{version.version} could not be fetched from {version.source}: {told}",
                fix="Try again when MLflow and its artifact store answer",
                code=UNAVAILABLE,
            )
        folder = found if found.is_dir() else found.parent
        if not (folder / "MLmodel").is_file():
            raise Unusable(f"its files are gone ({version.source} holds no MLmodel)")
        yield folder


def measure(folder: Path) -> Measured:
    """Load the model in ``folder`` in a clean process and predict its input example. Raises Unusable."""
    with tempfile.TemporaryDirectory(prefix="clean-") as scratch:
        result = Path(scratch) / "result.json"
        words = [sys.executable, "-I", "-B", str(PROBE), str(folder), str(result), str(CALLS), str(CALLS_SECONDS)]
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        environment |= {"HOME": scratch, PICKLES: os.environ.get(PICKLES, "false")}
        said = Path(scratch) / "stderr.txt"  # no pipe: what a model leaves running could hold that open for ever
        try:
            with said.open("wb") as errors:
                done = subprocess.run(
                    words, cwd=scratch, env=environment, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=errors
                )
        except subprocess.TimeoutExpired:
            raise Unusable(f"it did not load and predict within {SECONDS:g} s") from None
        if not result.exists():
            raise Unusable(f"it ends the process that loads it: exit code {done.returncode}, {_last_line(said)}")
        found = json.loads(result.read_text())
    if "error" in found:
        raise Unusable(f"it does not load and predict: {found['error'].splitlines()[0][:SHOWN]}")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Measured(size / 1e6, found["load_seconds"], found["milliseconds"])


def _signature(folder: Path) -> Any:
    from mlflow.models import Model

    return Model.load(str(folder)).signature


def _last_line(file: Path) -> str:
    """The last thing said in a file that may be of any size."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1][-SHOWN:] if lines else "without a word"
