"""What the benchmarks share: contestants as processes, paired rounds, and a table of ratios."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".cache"
sys.path.insert(0, str(HERE.parent))  # what is measured is this checkout, also where another one is installed

QUIET_CORES = 0.3
"""What other processes may use of the machine while something is measured."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Contestant = Callable[[], float | Mapping[str, float]]
"""Runs once and gives its figure, or several figures of this run by the names of their samples."""


@dataclass(frozen=True)
class Row:
    """One line of the table. A target holds for the ratio ours / theirs where there is a peer, else for ``ours``.

    Without a target the row is shown for information.
    """

    what: str
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        judged = self.ours if self.ratio is None else self.ratio
        if self.at_most is not None:
            return judged <= self.at_most
        return None if self.at_least is None else judged >= self.at_least

    @property
    def target(self) -> str:
        of = "" if self.ratio is None else "ratio "
        if self.at_most is not None:
            return f"{of}≤ {number(self.at_most)}"
        return "" if self.at_least is None else f"{of}≥ {number(self.at_least)}"


@dataclass
class Benchmark:
    """Samples and rows of one script; :meth:`finish` prints the table and writes ``results/<name>.json``.

    ``patience``: for how many seconds a sample that other processes disturb is put off or taken again. ``before``: the
    commit, the date, the machine and its load when the benchmark begins.
    """

    name: str
    rounds: int
    patience: float = 0.0
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=lambda: origin())

    def __post_init__(self) -> None:
        adopt_orphans()

    def run(self, contestants: Mapping[str, Contestant]) -> None:
        """Every contestant once a round, in turn (A B A B ...): a machine that drifts drifts for all."""
        for number in range(1, self.rounds + 1):
            for name, contestant in contestants.items():
                figures, others = self._sample(contestant)
                for what, value in (figures if isinstance(figures, Mapping) else {name: figures}).items():
                    self.samples[what].append(value)
                    self.busy[what].append(others)
                    print(f"round {number}: {what}: {value:.4g} (other processes: {others:.1f} cores)", file=sys.stderr)

    def _sample(self, contestant: Contestant) -> tuple[float | Mapping[str, float], float]:
        """A contestant's figures, and the cores that other processes used meanwhile; disturbed, it is run again."""
        deadline = time.monotonic() + self.patience
        while True:
            while busy_cores() > QUIET_CORES and time.monotonic() < deadline:
                pass
            used, started = foreign_seconds(), time.monotonic()
            figures = contestant()
            seconds = min(after - before for after, before in zip(foreign_seconds(), used))
            others = max(0.0, seconds / (time.monotonic() - started))
            if others <= QUIET_CORES or time.monotonic() >= deadline:
                return figures, others

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def hold(
        self, what: str, unit: str, ours: str, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Add a row for a contestant's own figure."""
        self.rows.append(Row(what, unit, self.median(ours), at_most=at_most, at_least=at_least))

    def compare(
        self,
        what: str,
        unit: str,
        ours: str,
        theirs: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Add a row for the ratio of two contestants."""
        self.rows.append(Row(what, unit, self.median(ours), theirs, self.median(theirs), at_most, at_least))

    def finish(self) -> None:
        width = max(len(row.what) for row in self.rows)
        peers = max(len(row.peer) for row in self.rows)
        print(f"| {'measure':{width}} | ours | {'peer':{peers}} | theirs | ratio | target | met |")
        print("|---|---|---|---|---|---|---|")
        for row in self.rows:
            theirs, ratio = (number(value) if value is not None else "" for value in (row.theirs, row.ratio))
            met = {None: "", True: "yes", False: "NO"}[row.met]
            print(
                f"| {row.what:{width}} | {number(row.ours)} {row.unit} | {row.peer:{peers}} | {theirs} "
                f"| {ratio} | {row.target} | {met} |"
            )
        disturbed = [name for name, busy in self.busy.items() if statistics.median(busy) > QUIET_CORES]
        if disturbed:
            self.notes.append(f"Disturbed by other processes, not to be believed: {'; '.join(disturbed)}.")
        for note in self.notes:
            print(f"\n{note}")
        result = {
            "benchmark": self.name,
            **self.before,
            "load_after": load(),
            "versions": versions("torch", "numpy", "ray", "mlflow", "optuna"),
            "rounds": self.rounds,
            "rows": [asdict(row) | {"ratio": row.ratio, "target": row.target, "met": row.met} for row in self.rows],
            "samples": dict(self.samples),
            "busy_cores": {name: [round(v, 2) for v in values] for name, values in self.busy.items()},
            "notes": self.notes,
        }
        write_results(HERE / "results" / f"{self.name}.json", result)


def read_results(file: Path) -> dict[str, Any]:
    """What earlier runs have written; empty without a file."""
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return results


def write_results(file: Path, results: Mapping[str, Any]) -> None:
    """Write the file in one step: a script that is interrupted continues from it."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(file)


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_text(values: Sequence[float], digits: int = 4) -> str:
    """Mean and, for several values, sample standard deviation."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def thread_count(threads: int) -> str:
    """What a contestant's name ends in."""
    return f", {threads} thread{'s'[: threads - 1]}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def arguments(description: str, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="Paired repeats; the median counts.")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="Seconds in which a disturbed sample is put off or taken again."
    )
    return parser


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
    code: int = 0,
) -> tuple[str, float]:
    """Run a process to its end, on this checkout: its standard output, and its seconds from start to exit.

    ``code`` is the exit code it must have. Raises SystemExit with the process' last words when it fails: the time of
    a broken program is no figure.
    """
    pinned = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
    started = time.monotonic()
    done = subprocess.run(
        list(command), env=environment({**pinned, **(env or {})}), capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout, seconds


def environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process, in which this checkout is imported first, with variables of its own."""
    variables = {**os.environ, **(own or {})}
    paths = [str(HERE.parent), *filter(None, [variables.get("PYTHONPATH")])]
    return variables | {"PYTHONPATH": os.pathsep.join(paths)}


def answer(output: str) -> dict[str, Any]:
    """The JSON object in a process' last line."""
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def peers_python(peers: str = "peers") -> str:
    """The interpreter of the peers' own environment; ``peers-neural`` is that of images and sentences."""
    python = PEERS / peers / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"The peers are not installed: run benchmarks/setup.sh {peers} first")
    return str(python)


def data_root(file: str = "ml-100k/100k_train.csv") -> Path:
    """The root that holds a dataset, known by one of its files."""
    root = os.environ.get("ORCHESTRATOR_DATA")
    if not root or not (Path(root) / file).exists():
        raise SystemExit(f"ORCHESTRATOR_DATA must name a folder that holds {file}")
    return Path(root)


def busy_cores(seconds: float = 0.5) -> float:
    """How many of the cores that this process may use are in use while it sleeps."""
    shares = psutil.cpu_percent(interval=seconds, percpu=True)
    return sum(shares[core] for core in os.sched_getaffinity(0)) / 100


def foreign_seconds() -> tuple[float, float]:
    """CPU seconds that other programs have used, counted in two ways; neither is too low.

    By cores: those that this process may use, less its own time and its descendants'. Programs on other cores do not
    count (``taskset -c 0,1``). By processes: all that are not its descendants. Processes that ended without being
    waited for, as the workers of Ray's raylet do, do not count.
    """
    cores = psutil.cpu_times(percpu=True)
    busy = sum(sum(cores[core]) - cores[core].idle - cores[core].iowait for core in os.sched_getaffinity(0))
    own = {process.pid for process in own_processes()}
    return float(busy - own_seconds()), _seconds(one for one in psutil.process_iter() if one.pid not in own)


def adopt_orphans() -> None:
    """Have this process inherit what its descendants leave running, so that :func:`own_seconds` counts it (Linux).

    Ray's daemons outlive who starts them for a while; init would inherit them, and their time would count as foreign.
    """
    pr_set_child_subreaper = 36
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def own_processes() -> list[psutil.Process]:
    """This process and its descendants."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def own_seconds() -> float:
    """CPU seconds of this process and its descendants; what an ended one used has moved to its parent."""
    return _seconds(own_processes())


def _seconds(processes: Iterable[psutil.Process]) -> float:
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
    return seconds


def commit() -> str | None:
    """The commit that is measured, ``-dirty`` where other files than results differ from it; None without git."""
    changes = ["git", "status", "--porcelain", "--", ".", ":!benchmarks/results"]
    asked = (["git", "rev-parse", "--short=12", "HEAD"], changes)
    try:
        done = [subprocess.run(words, cwd=HERE.parent, capture_output=True, text=True, check=False) for words in asked]
    except OSError:  # git is not installed
        return None
    if any(one.returncode for one in done):
        return None
    return done[0].stdout.strip() + ("-dirty" if done[1].stdout.strip() else "")


def origin() -> dict[str, Any]:
    """What every results file says of a measurement: when it began, of which commit, on which machine, how busy."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"when": when, "commit": commit(), "machine": machine(), "load": load()}


def load() -> list[float]:
    """The machine's load averages over 1, 5 and 15 minutes: processes that run or want to."""
    return [round(value, 2) for value in os.getloadavg()]


def printed(script: str) -> None:
    """Head the tables of a script, whose output is stored as ``results/NAME.md``: command, date and commit."""
    made = origin()
    print(f"`python benchmarks/{Path(script).name}` printed this at {made['when']}, commit {made['commit']}.\n")


def machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def versions(*names: str) -> dict[str, str]:
    """Of the packages that are installed: some benchmarks need no more than PyTorch."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _lines(file: str) -> list[str]:
    path = Path(file)
    return path.read_text().splitlines() if path.exists() else []
