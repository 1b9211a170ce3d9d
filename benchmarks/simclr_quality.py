"""kNN accuracy of ResNet-18 after 400 steps on the 10,000-image CIFAR-10 subset: InfoNCE, HCL and BCL, several seeds.

Each (loss, seed) is written to ``results/simclr_quality.json`` as it ends; a run that was cut goes on from its last 40
steps, and a second call runs what is missing. Settings are looked at on validation, with ``--try``; test is opened once
a run, at its end. The images are JPEG-recompressed: nothing here stands beside a published table.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from harness import commit, machine
from torch.nn import functional

from orchestrator.results.statistics import over_seeds
from workloads.augment import normalise
from workloads.contract import Runtime
from workloads.metrics.probe import in_top, knn_scores
from workloads.simclr.workload import SimCLR

RESULTS = Path(__file__).parent / "results" / "simclr_quality.json"
CHECKPOINTS = Path(__file__).resolve().parent.parent / ".cache" / "simclr_quality"

LOSSES = ("infonce", "hcl", "bcl")
STEPS, EPOCHS, EVALUATED = 40, 10, 5
"""Steps between two checkpoints, how many times over, and after how many of those validation is looked at."""

SETTINGS: dict[str, Any] = {"dataset": "cifar-10-subset", "encoder": "resnet18", "batch_size": 256, "eval_k": 20}
"""The rest is the workload's default, the same for every loss and chosen by none: Adam at 1e-3 and t = 0.5 are the
thesis' (6.6.2.3), the cosine is SimCLR's."""

KEPT = ("knn_top1", "knn_top5", "probe_top1", "alignment", "uniformity", "auc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data root that holds cifar10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of {STEPS} steps, with --try")
    parser.add_argument("--try", nargs="*", metavar="KEY=VALUE", dest="tried", help="settings to look at on validation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.tried is not None:
        look(arguments)
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    if "baselines" not in results:
        results["baselines"] = baselines(arguments)
        keep(results)
    for seed in range(arguments.seeds):
        for loss in LOSSES:
            if not any((run["loss"], run["seed"]) == (loss, seed) for run in results["runs"]):
                results["runs"].append(train(loss, seed, arguments))
                keep(results)
    report(results)


def workload(arguments: argparse.Namespace, seed: int, epochs: int = EPOCHS, **settings: Any) -> SimCLR:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runtime = Runtime(
        device=device, data=arguments.data, seed=seed, epochs=epochs, steps_per_epoch=STEPS,
        precision=arguments.precision,
    )  # fmt: skip
    return SimCLR(SimCLR.Params(**{**SETTINGS, **settings}), runtime)


def look(arguments: argparse.Namespace) -> None:
    """One shorter run, judged on validation alone; nothing is written."""
    settings = dict(word.split("=", 1) for word in arguments.tried)
    built = workload(arguments, 100, arguments.epochs, **settings)
    for epoch in range(1, arguments.epochs + 1):
        loss = built.train_epoch(epoch)["loss"]
    found = {name: round(value, 4) for name, value in built.evaluate("validation").metrics.items()}
    print(json.dumps({**settings, "steps": STEPS * arguments.epochs, "loss": round(loss, 4), **found}), flush=True)


def train(loss: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A run from its last checkpoint to its end, measured on both splits."""
    built, started = workload(arguments, seed, loss=loss), time.monotonic()
    checkpoint = CHECKPOINTS / f"{loss}-{seed}.pt"
    before, spent, curve = 0, 0.0, []
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        built.load_state_dict(kept["state"])
        before, spent, curve = kept["epoch"], kept["seconds"], kept["curve"]
    for epoch in range(before + 1, EPOCHS + 1):
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
        "precision": arguments.precision,
        "commit": commit(),
        "machine": machine(),
    }


@torch.no_grad()
def baselines(arguments: argparse.Namespace) -> dict[str, Any]:
    """kNN on test by raw pixels, and by the encoder before training."""
    built = workload(arguments, 0)
    data = built.data
    pixels = [
        functional.normalize(normalise(part.take(torch.arange(len(part)))).flatten(1), dim=1)
        for part in (data.train, data.test)
    ]
    votes = knn_scores(pixels[0], data.train.labels, pixels[1], classes=len(data.classes))
    untrained = [workload(arguments, seed).evaluate("test").metrics for seed in range(arguments.seeds)]
    return {
        "raw pixels": {"knn_top1": in_top(votes, data.test.labels, 1).mean().item()},
        "untrained": [{name: one[name] for name in KEPT} for one in untrained],
    }


def keep(results: dict[str, Any]) -> None:
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(RESULTS)


def report(results: dict[str, Any]) -> None:
    values = {loss: {run["seed"]: run["test"]["knn_top1"] for run in results["runs"] if run["loss"] == loss}
              for loss in LOSSES}  # fmt: skip
    print("\n| features | kNN top-1 on test, mean ± sd | runs |\n| --- | --- | --- |")
    print(f"| raw pixels | {results['baselines']['raw pixels']['knn_top1']:.4f} | |")
    print(told("untrained", [one["knn_top1"] for one in results["baselines"]["untrained"]]))
    for loss, found in values.items():
        print(told(loss, list(found.values())))
    for one, other in combinations(LOSSES, 2):
        found = over_seeds(list(values[one].values()), list(values[other].values()), "welch")
        if found.low is not None and found.high is not None:
            claim = "no ranking" if found.low <= 0 <= found.high else "a difference"
            print(f"{one} - {other}: {found.value:+.4f}, 95% [{found.low:+.4f}, {found.high:+.4f}]: {claim}")


def told(name: str, values: list[float]) -> str:
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"| {name} | {fmean(values):.4f}{spread} | {len(values)} |" if values else f"| {name} | | 0 |"


if __name__ == "__main__":
    main()
