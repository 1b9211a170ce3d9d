"""kNN accuracy of ResNet-18 after 400 steps on the 10,000-image CIFAR-10 subset: losses and methods, several seeds.

By default InfoNCE, HCL and BCL; ``--rows`` names others, such as MoCo, BYOL and ProtoNCE. Each (row, seed) is written
to ``results/simclr_quality.json`` when it ends. An interrupted run continues from its last checkpoint (every 40 steps),
and a second call runs the missing ones. Each encoder, precision and number of steps has its own results file and
checkpoints. ``--try`` tests settings on validation; test is evaluated once per run, at its end. The images are
JPEG-recompressed, so the results are not comparable with published tables.

    python benchmarks/simclr_quality.py --data DATA                                    # the README's, on two cores
    python benchmarks/simclr_quality.py --data DATA --seeds 1 --rows moco              # a piece of 35 minutes
    python benchmarks/simclr_quality.py --data DATA --encoder resnet50 --epochs 100    # N = 510, 4,000 steps, on a GPU
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from harness import HERE, mean_text, origin, printed, read_results, write_results
from scipy import stats
from torch.nn import functional

from orchestrator.report.statistics import CONFIDENCE, Difference, over_seeds
from workloads.augment import normalise
from workloads.contract import Runtime
from workloads.metrics.probe import in_top, knn_scores
from workloads.simclr.workload import SimCLR

RESULTS = HERE / "results"
CHECKPOINTS = HERE.parent / ".cache" / "simclr_quality"

ROWS: dict[str, dict[str, Any]] = {
    **{loss: {"loss": loss} for loss in ("infonce", "hcl", "bcl", "dcl", "supervised")},
    "moco": {"method": "moco"},
    "moco-bcl": {"method": "moco", "loss": "bcl"},
    "byol": {"method": "byol"},
    "protonce": {"method": "protonce"},
}
"""Settings of each row; ``supervised`` is the oracle (6.1)."""

LOSSES = ("infonce", "hcl", "bcl")
"""The rows that are trained by default."""

STEPS, EPOCHS, EVALUATED = 40, 10, 5
"""Steps between checkpoints, number of these intervals, and intervals between validations."""

MARGIN = 0.05
"""Required margin of a trained encoder over raw pixels and over the untrained encoder."""

SETTINGS: dict[str, Any] = {"dataset": "cifar-10-subset", "encoder": "resnet18", "batch_size": 256, "eval_k": 20}
"""Other settings are the workload's defaults, equal for all losses: Adam at 1e-3 and t = 0.5 are the thesis' (6.6.2.3),
the cosine is SimCLR's."""

KEPT = ("knn_top1", "knn_top5", "probe_top1", "alignment", "uniformity", "auc")


class Setup(NamedTuple):
    """Settings that identify a run, with loss and seed."""

    settings: dict[str, Any]
    precision: Any
    epochs: int

    @property
    def digest(self) -> str:
        """Short digest of the settings."""
        identity = json.dumps([self.settings, self.precision, self.epochs, STEPS], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:8]

    @property
    def results(self) -> Path:
        """The results file. The settings shown in the README have the plain name."""
        own = "" if self == Setup(SETTINGS, "bf16", EPOCHS) else f"-{self.settings['encoder']}-{self.digest}"
        return RESULTS / f"simclr_quality{own}.json"

    def made(self, run: dict[str, Any]) -> bool:
        """Whether a stored run has these settings."""
        had = {name: run["params"][name] for name in self.settings}
        return Setup(had, run["precision"], len(run["curve"])).digest == self.digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data root that holds cifar10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(LOSSES), help="what to train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--encoder", choices=["resnet18", "resnet34", "resnet50"], default=SETTINGS["encoder"])
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of {STEPS} steps")
    parser.add_argument("--try", nargs="*", metavar="KEY=VALUE", dest="tried", help="settings to look at on validation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    setup = Setup({**SETTINGS, "encoder": arguments.encoder}, arguments.precision, arguments.epochs)
    if arguments.tried is not None:
        try_settings(setup, arguments)
        return
    results = read_results(setup.results) or {"runs": []}
    if "baselines" not in results or len(results["baselines"]["untrained"]) < arguments.seeds:
        results["baselines"] = baselines(setup, arguments)
        write_results(setup.results, results)
    for seed in range(arguments.seeds):
        for loss in arguments.rows:
            if not any((run["loss"], run["seed"]) == (loss, seed) and setup.made(run) for run in results["runs"]):
                results["runs"].append(train(loss, seed, setup, arguments))
                write_results(setup.results, results)
    printed(__file__)
    report({**results, "runs": [run for run in results["runs"] if setup.made(run)]})


def workload(setup: Setup, data: Path, seed: int, **settings: Any) -> SimCLR:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runtime = Runtime(
        device=device, data=data, seed=seed, epochs=setup.epochs, steps_per_epoch=STEPS, precision=setup.precision
    )
    return SimCLR(SimCLR.Params(**{**setup.settings, **settings}), runtime)


def try_settings(setup: Setup, arguments: argparse.Namespace) -> None:
    """One shorter run, evaluated on validation only. Writes nothing."""
    settings = dict(word.split("=", 1) for word in arguments.tried)
    built = workload(setup, arguments.data, 100, **settings)
    for epoch in range(1, setup.epochs + 1):
        loss = built.train_epoch(epoch)["loss"]
    result = {name: round(value, 4) for name, value in built.evaluate("validation").metrics.items()}
    print(json.dumps({**settings, "steps": STEPS * setup.epochs, "loss": round(loss, 4), **result}), flush=True)


def train(loss: str, seed: int, setup: Setup, arguments: argparse.Namespace) -> dict[str, Any]:
    """Continue a run from its last checkpoint to its end, and evaluate both splits."""
    built, started = workload(setup, arguments.data, seed, **ROWS[loss]), time.monotonic()
    checkpoint = CHECKPOINTS / f"{loss}-{seed}-{setup.digest}.pt"
    before, spent, curve = 0, 0.0, []
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        built.load_state_dict(kept["state"])
        before, spent, curve = kept["epoch"], kept["seconds"], kept["curve"]
    for epoch in range(before + 1, setup.epochs + 1):
        curve.append({"steps": epoch * STEPS, **built.train_epoch(epoch)})
        if epoch % EVALUATED == 0:
            curve[-1] |= {f"validation {name}": value for name, value in built.evaluate("validation").metrics.items()}
        seconds = spent + time.monotonic() - started
        print(f"{loss} seed {seed}: {curve[-1]}, {seconds:.0f} s", flush=True)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = checkpoint.with_suffix(".partial")
        torch.save({"state": built.state_dict(), "epoch": epoch, "seconds": seconds, "curve": curve}, partial)
        partial.replace(checkpoint)
    test = built.evaluate("test").metrics
    return {
        "loss": loss,
        "seed": seed,
        "test": {name: test[name] for name in KEPT},
        "curve": curve,
        "seconds": spent + time.monotonic() - started,
        "params": built.params.model_dump(),
        "precision": setup.precision,
        **origin(),
    }


@torch.no_grad()
def baselines(setup: Setup, arguments: argparse.Namespace) -> dict[str, Any]:
    """kNN on test with raw pixels, and with the untrained encoder."""
    built = workload(setup, arguments.data, 0)
    data = built.data
    pixels = [
        functional.normalize(normalise(part.take(torch.arange(len(part)))).flatten(1), dim=1)
        for part in (data.train, data.test)
    ]
    votes = knn_scores(pixels[0], data.train.labels, pixels[1], classes=len(data.classes))
    untrained = [workload(setup, arguments.data, seed).evaluate("test").metrics for seed in range(arguments.seeds)]
    return {
        "raw pixels": {"knn_top1": in_top(votes, data.test.labels, 1).mean().item()},
        "untrained": [{name: one[name] for name in KEPT} for one in untrained],
    }


def report(results: dict[str, Any]) -> None:
    rows = [row for row in ROWS if row in LOSSES or any(run["loss"] == row for run in results["runs"])]
    values = {row: {run["seed"]: run["test"]["knn_top1"] for run in results["runs"] if run["loss"] == row}
              for row in rows}  # fmt: skip
    pixels = results["baselines"]["raw pixels"]["knn_top1"]
    untrained = [one["knn_top1"] for one in results["baselines"]["untrained"]]
    print("\n| features | kNN top-1 on test, mean ± sd | runs |\n| --- | --- | --- |")
    print(f"| raw pixels | {pixels:.4f} | |")
    print(table_row("untrained", untrained))
    for loss, result in values.items():
        print(table_row(loss, list(result.values())))
    for loss, result in values.items():
        print(above(f"{loss} - raw pixels", one_sample([value - pixels for value in result.values()])))
        print(above(f"{loss} - untrained", over_seeds(list(result.values()), untrained, "welch") if result else None))
    for one, other in combinations(rows, 2):
        if values[one] and values[other]:
            result = over_seeds(list(values[one].values()), list(values[other].values()), "welch")
            if result.low is not None and result.high is not None:
                claim = "no ranking" if result.low <= 0 <= result.high else "a difference"
                print(f"{one} - {other}: {result.value:+.4f}, 95% [{result.low:+.4f}, {result.high:+.4f}]: {claim}")


def one_sample(differences: list[float]) -> Difference | None:
    """Mean over seeds of a difference to a constant, with Student's t interval; None without seeds."""
    if not differences:
        return None
    value, count = fmean(differences), len(differences)
    if count < 2:
        return Difference(value, why="n < 2")
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * stdev(differences) / math.sqrt(count)
    return Difference(value, value - half, value + half)


def above(name: str, result: Difference | None) -> str:
    """Whether a difference, and its whole interval, is at least :data:`MARGIN`."""
    if result is None:
        return f"{name}: no run"
    if result.low is None or result.high is None:
        return f"{name}: {result.value:+.4f}, no interval ({result.why}); {MARGIN:+.2f} asked: {yes(result.value)}"
    interval = f"95% [{result.low:+.4f}, {result.high:+.4f}]"
    met = f"{yes(result.value)}, its lower end: {yes(result.low)}"
    return f"{name}: {result.value:+.4f}, {interval}; {MARGIN:+.2f} asked: {met}"


def yes(value: float) -> str:
    return "yes" if value >= MARGIN else "NO"


def table_row(name: str, values: list[float]) -> str:
    return f"| {name} | {mean_text(values)} | {len(values)} |" if values else f"| {name} | | 0 |"


if __name__ == "__main__":
    main()
