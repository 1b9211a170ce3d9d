"""What a run's record must hold so that it can be repeated: code, packages, machine, command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def command() -> str:
    """The command line that started this process, as a user would type it."""
    words = sys.argv[1:] if Path(sys.argv[0]).name in ("orchestrator", "__main__.py") else None
    return shlex.join(["orchestrator", *words]) if words is not None else shlex.join(sys.argv)


@cache
def packages() -> dict[str, str]:
    """Every installed distribution and its version, sorted by name."""
    found = {str(d.metadata["Name"]): d.version for d in distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


@cache
def code() -> dict[str, str]:
    """Commit, and whether files differ from it; in a submitted job, the client's. Empty when neither is known."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        sent = (job.get("metadata") or {}).get("commit")
        return {"mlflow.source.git.commit": sent} if sent else {}
    dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return {"mlflow.source.git.commit": commit, "mlflow.source.git.dirty": str(dirty).lower()}


def tags() -> dict[str, str]:
    """Command and code, under the names that MLflow's UI shows."""
    words = command()
    return {
        "orchestrator.command": words,
        "mlflow.source.name": words[:200],
        "mlflow.source.type": "LOCAL",
        **code(),
    }


def environment() -> dict[str, Any]:
    """What the record's ``environment.json`` holds."""
    return {
        "command": command(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "code": code(),
        "packages": packages(),
    }


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
