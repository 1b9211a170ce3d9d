"""How long do the commands take that look at a sweep of 5,000 trials, or resume it up to the connection to Ray?

The folder is written by the real manager, study and journals of a driver (:mod:`simulated_sweep`); each command is a
process of its own, from its start to its exit.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from harness import HERE, Benchmark, arguments, spawn
from simulated_sweep import SPACE, filled

TRIALS, MORE = 5000, 300
MOST_SECONDS = 2.0


def commands(home: Path, name: str) -> dict[str, list[str]]:
    """The measured commands, and the peer: an interpreter that loads Optuna."""
    orchestrator = [sys.executable, "-m", "orchestrator"]
    return {
        "ls": [*orchestrator, "ls", "--storage", str(home)],
        "status": [*orchestrator, "status", name, "--storage", str(home)],
        "sweep --resume, before Ray": [sys.executable, str(HERE / "resumed_sweep.py"), str(home), name, SPACE],
        "import optuna": [sys.executable, "-c", "import optuna"],
    }


def main() -> None:
    options = arguments(__doc__.splitlines()[0], 5).parse_args()
    bench = Benchmark("sweep_commands", options.rounds, options.patience)
    home = Path(tempfile.mkdtemp(prefix="sweep-commands-"))
    os.environ["ORCHESTRATOR_HOME"] = str(home / "home")
    try:
        filled(home, TRIALS, MORE, "large").release("interrupted", 130)
        *measured, optuna = contestants = commands(home, "large")
        bench.run({what: lambda command=command: spawn(command)[1] for what, command in contestants.items()})
        for what in measured:
            bench.hold(f"{what}, {TRIALS:,} trials", "s", what, at_most=MOST_SECONDS)
        bench.hold(optuna, "s", optuna)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    bench.finish()


if __name__ == "__main__":
    main()
