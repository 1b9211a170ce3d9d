"""A run or sweep under one name to its end, over any number of attempts: the entrypoint of a job that is retried.

    python durable.py NAME sweep recommender dataset=synthetic --trials 32

The first attempt begins it, each later one goes on where the one before was lost. A retry may find the lease of its
dead predecessor still valid, or a twin at work: it waits for the end of either.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from orchestrator.errors import DONE, PARTIAL, USAGE
from orchestrator.storage.records import SETTLED


def standing(name: str) -> dict[str, Any] | None:
    """How NAME stands once no one drives it; None where there is none. Exits when the storage does not say."""
    # The command leaves its exit code in the log of a Ray job; this one is not the job's.
    environment = {key: value for key, value in os.environ.items() if key != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    command = ["orchestrator", "status", name, "--wait", "--json"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.stdout.strip():
        values: dict[str, Any] = json.loads(answer.stdout)
        return values
    if answer.returncode == USAGE:  # unknown
        return None
    sys.exit(answer.stderr or answer.returncode)


def main(name: str, verb: str, *words: str) -> int:
    """The attempt's exit code; that of a sweep with some failed trials is 0, since a retry would change nothing."""
    before = standing(name)
    if before and before["status"] in SETTLED:
        print(f"{name} is {before['status']} already")
        return DONE
    command = ["orchestrator", verb, "--resume", name] if before else ["orchestrator", verb, *words, "--name", name]
    for stop in (signal.SIGINT, signal.SIGTERM):  # it reaches the command too, which saves and ends
        signal.signal(stop, lambda *_: None)
    code = subprocess.call(command)
    return DONE if code == PARTIAL else code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
