"""Error of VERA's confidence on generated questions with known probabilities, by number of questions.

The planted probabilities are .3, .5, .75 and .95, so always answering their mean has an error of .225. Also the risk at
the threshold chosen for a risk of .1 on validation: on validation, and on test. Settings are the workload's defaults,
and the same with ``calibration_part=validation``; 20 epochs, the last one counts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from harness import mean_text, printed

from workloads.contract import Runtime
from workloads.data import DATASETS
from workloads.data.questions.synthetic import SYNTHETIC_QUESTIONS, Planted, generate
from workloads.vera.params import Params
from workloads.vera.workload import Vera

TOPICS = (300, 1200)
"""The default number of topics, and four times as many; each has four questions."""

PARTS = ("train", "validation")
EPOCHS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    printed(__file__)
    print("| questions to train on | calibration_part | seeds | truth_mae | risk on validation | on test |")
    print("|---|---|---|---|---|---|")
    for topics in TOPICS:
        known = replace(
            SYNTHETIC_QUESTIONS, version=f"{topics} topics", reader=lambda _, n=topics: generate(Planted(n))
        )
        DATASETS["synthetic-questions"] = known  # type: ignore[index]
        for part in PARTS:
            runs = [trained(part, seed) for seed in range(args.seeds)]
            columns = zip(*(run[1:] for run in runs))
            values = " | ".join(mean_text(column, 3) for column in columns)
            print(f"| {runs[0][0]} | {part} | {args.seeds} | {values} |", flush=True)


def trained(part: str, seed: int) -> tuple[int, float, float, float]:
    """Number of training questions; after the last epoch, ``calib/truth_mae`` on test, risk on validation and test."""
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=seed, epochs=EPOCHS)
    vera = Vera(Params(calibration_part=part), runtime)
    for epoch in range(1, EPOCHS + 1):
        vera.train_epoch(epoch)
    seen, test = (vera.evaluate(split).metrics for split in ("validation", "test"))
    risk = "selective/score/risk"
    return len(vera.data.parts.train), test["calib/truth_mae"], seen[risk], test[risk]


if __name__ == "__main__":
    main()
