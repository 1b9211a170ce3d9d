"""How long a command takes to respond: --help, a configuration error, and `run --local` until it trains.

Whole processes with a warm file cache and an initialised store: a first round does not count. The start of
training is read from MLflow, as the time when the first epoch *finished*: a little late, never early.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import Benchmark, Contestant, answer, arguments, data_root, spawn

ORCHESTRATOR = [sys.executable, "-m", "orchestrator"]
TYPO = ["run", "recommender", "dataset=ml-100k", "backbone=lightgcm"]
RUN = ["run", "recommender", "dataset=ml-100k", "epochs=1", "--local", "--json"]

FIRST_EPOCH = """
SELECT min(metrics.timestamp) FROM metrics JOIN runs USING (run_uuid)
WHERE metrics.key = 'train/loss' AND runs.run_uuid = ?
"""


def whole(command: list[str], code: int = 0) -> float:
    return spawn(command, code=code)[1]


def until_training(home: Path) -> float:
    started = time.time()
    run = answer(spawn([*ORCHESTRATOR, *RUN])[0])["run_id"]
    with sqlite3.connect(home / "mlflow.db") as store:
        (moment,) = store.execute(FIRST_EPOCH, (run,)).fetchone()
    return float(moment) / 1000 - started


def main() -> None:
    args = arguments("How long a command takes to answer.", rounds=5).parse_args()
    data_root()
    home = Path(tempfile.mkdtemp())
    os.environ["ORCHESTRATOR_HOME"] = str(home)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    contestants: dict[str, Contestant] = {
        "python -c pass": partial(whole, [sys.executable, "-c", "pass"]),
        "--help": partial(whole, [*ORCHESTRATOR, "--help"]),
        "import torch": partial(whole, [sys.executable, "-c", "import torch"]),
        "configuration error": partial(whole, [*ORCHESTRATOR, *TYPO], 2),
        "until training": partial(until_training, home),
    }
    try:
        Benchmark("warm-up", 1).run(contestants)
        bench = Benchmark("startup", args.rounds, args.patience)
        bench.run(contestants)
    finally:
        shutil.rmtree(home)
    bench.samples["--help, less the interpreter"] = [
        whole - bare for whole, bare in zip(bench.samples["--help"], bench.samples["python -c pass"])
    ]
    bench.hold("--help, less a bare interpreter", "s", "--help, less the interpreter", at_most=0.4)
    bench.hold("a configuration error", "s", "configuration error", at_most=0.8)
    bench.hold("run --local, until its first epoch is done", "s", "until training", at_most=4)
    bench.compare("run --local, until its first epoch is done", "s", "until training", "import torch")
    bench.finish()


if __name__ == "__main__":
    main()
