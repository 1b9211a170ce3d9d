"""Begin or resume a run or sweep under one name: the entrypoint of a job that is retried or requeued.

    python -m orchestrator.jobs.durable NAME sweep recommender dataset=synthetic --trials 32

The first attempt begins it, each later one with the same arguments resumes it; other arguments are refused. If another
process drives it, or the lease of a lost driver has not expired yet, an attempt waits for the end of either.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config.options import ADDRESSES, CODE, flag_of, named_code
from orchestrator.config.parsing import option_values, read_experiment
from orchestrator.config.user_code import absolute
from orchestrator.errors import DONE, PARTIAL, USAGE, UserError
from orchestrator.provenance import private_files
from orchestrator.provenance.scrub import scrub_words
from orchestrator.search.trusted_spaces import trust
from orchestrator.storage.records import SETTLED


def status(name: str, storage: Sequence[str] = ()) -> dict[str, Any] | None:
    """``orchestrator status NAME`` once it has no driver; None if there is no such run. Exits without an answer.

    ``storage`` is the option ``--storage`` of the run's command, if it has one.
    """
    # The command leaves its exit code in the log of a Ray job; this one is not the job's.
    environment = {key: value for key, value in os.environ.items() if key != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    command = ["orchestrator", "status", name, "--wait", "--json", *storage]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.stdout.strip():
        values: dict[str, Any] = json.loads(answer.stdout)
        return values
    if answer.returncode == USAGE:  # no such run
        return None
    print(answer.stderr, end="", file=sys.stderr)
    sys.exit(answer.returncode)


def main(name: str, verb: str, *words: str) -> int:
    """The attempt's exit code; that of a sweep with some failed trials is 0, since a retry would change nothing."""
    addresses = _options(words, ADDRESSES)
    before = status(name, _options(words, ["storage"]))
    given = scrub_words([verb, *words])  # as the record has them
    if before and (recorded := _arguments(before["command"])) != given:
        print(f"{name} was begun with other arguments: {shlex.join(recorded)}; choose another name", file=sys.stderr)
        return USAGE
    if before and before["status"] in SETTLED:
        print(f"{name} is {before['status']} already")
        return DONE
    arguments = [*words, "--name", name]
    if before:
        arguments = ["--resume", name, *addresses, *_own_code(verb, words, before.get("workload"))]
    for stop in (signal.SIGINT, signal.SIGTERM):  # the command gets it too: it saves and ends
        signal.signal(stop, lambda *_: None)
    code = subprocess.call(["orchestrator", verb, *arguments])
    return DONE if code == PARTIAL else code


def _own_code(verb: str, words: Sequence[str], workload: str | None) -> list[str]:
    """The options of a resume that name code of the user, as the command or its file does. Trusts its ``workload``.

    A retry on a new cluster has a new home, which does not know what the first attempt has named.
    """
    values = option_values(words)
    file: dict[str, Any] = {}
    with suppress(UserError):  # a resume does not need the file
        file = read_experiment(Path(values["--config"])).values if "--config" in values else {}
    if workload and workload in map(absolute, [*words, str(file.get("workload"))]):
        trust(workload, private_files.home())
    if verb != "sweep":
        return []
    searched = {name: values.get(flag_of(name), file.get("search", {}).get(name)) for name in CODE}
    return [word for name, value in named_code(searched).items() for word in (flag_of(name), value)]


def _options(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The options ``names`` with their values, as far as ``words`` gives them."""
    values = option_values(words)
    return [word for flag in map(flag_of, names) if flag in values for word in (flag, values[flag])]


def _arguments(command: str) -> list[str]:
    """The words of a recorded command, without its program and the name of the run."""
    arguments: list[str] = []
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word == "--name":
            next(words, None)
        elif not word.startswith("--name="):
            arguments.append(word)
    return arguments


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
