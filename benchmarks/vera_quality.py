"""How far VERA's c is from the known probabilities of the generated questions, by how many questions there are.

The planted probabilities are .3, .5, .75 and .95: whoever knows their mean alone errs by .225. Beside it the risk at
the threshold that was chosen for a risk of .1 on validation: there, and on test. Settings are the workload's defaults
and, second, with ``calibration_part=validation``; 20 epochs, the last one counts.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from harness import printed

from workloads.contract import Runtime
from workloads.data import DATASETS
from workloads.data.questions.synthetic import SYNTHETIC_QUESTIONS, Planted, generate
from workloads.vera.params import Params
from workloads.vera.workload import Vera

TOPICS = (300, 1200)
"""As it comes, and four times as many; each has four questions."""

PARTS = ("train", "validation")
EPOCHS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    printed(__file__)
    print("| questions to train on | calibration_part | seeds | truth_mae | risk on validation | on test |")
    print("|---|---|---|---|---|---|")
    for topics in TOPICS:
        known = replace(
            SYNTHETIC_QUESTIONS, version=f"{topics} topics", reader=lambda _, n=topics: generate(Planted(n))
        )
        DATASETS["synthetic-questions"] = known  # type: ignore[index]
        for part in PARTS:
            runs = [trained(part, seed) for seed in range(asked.seeds)]
            columns = zip(*(run[1:] for run in runs))
            values = " | ".join(f"{statistics.mean(column):.3f} ± {statistics.stdev(column):.3f}" for column in columns)
            print(f"| {runs[0][0]} | {part} | {asked.seeds} | {values} |", flush=True)


def trained(part: str, seed: int) -> tuple[int, float, float, float]:
    """Training questions; after the last epoch ``calib/truth_mae`` on test, and the risk on validation and on test."""
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=seed, epochs=EPOCHS)
    vera = Vera(Params(calibration_part=part), runtime)
    for epoch in range(1, EPOCHS + 1):
        vera.train_epoch(epoch)
    seen, test = (vera.evaluate(split).metrics for split in ("validation", "test"))
    risk = "selective/score/risk"
    return len(vera.data.parts.train), test["calib/truth_mae"], seen[risk], test[risk]


if __name__ == "__main__":
    main()
