"""sentence-transformers on STS-B as shipped: its trainer's steps, or its ``encode``, and their seconds, as JSON.

``CosineSimilarityLoss``, batches of 32 in random order, its default AdamW and clipping; encoding in batches of 64.
``--precision bf16`` trains and encodes under autocast.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from transformers import TrainerCallback

BATCH = 32


class Clock(TrainerCallback):  # type: ignore[misc]
    """End time of each step."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended.append(time.perf_counter())


def train(model: SentenceTransformer, rows: list[list[str]], precision: str, steps: int, rounds: int) -> list[float]:
    """Seconds of rounds of steps, without the first round."""
    first, second, scores = zip(*rows)
    pairs = Dataset.from_dict(
        {"sentence1": first, "sentence2": second, "score": [float(score) / 5 for score in scores]}
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=steps * (1 + rounds), learning_rate=2e-5,
            warmup_ratio=0.1, bf16=precision == "bf16", use_cpu=True, report_to="none", save_strategy="no",
            logging_strategy="no", disable_tqdm=True, seed=1,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=pairs, loss=CosineSimilarityLoss(model), callbacks=[clock]
        )
        trainer.train()
    ends = clock.ended[steps - 1 :: steps]
    return [stop - start for start, stop in pairwise(ends)]


def encode(model: SentenceTransformer, rows: list[list[str]], precision: str, rounds: int) -> list[float]:
    seconds = []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            model.encode([row[0] for row in rows], batch_size=64, show_progress_bar=False)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--task", choices=("train", "encode"), required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    file = Path(os.environ["ORCHESTRATOR_DATA"]) / "stsb" / "stsb-en-train.csv"
    text = file.read_bytes() if file.exists() else gzip.decompress(Path(f"{file}.gz").read_bytes())
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    model = SentenceTransformer(args.model, device="cpu")
    if args.task == "train":
        seconds, count = train(model, rows, args.precision, args.steps, args.rounds), BATCH * args.steps
    else:
        seconds, count = encode(model, rows, args.precision, args.rounds), len(rows)
    print(json.dumps({"seconds": seconds, "count": count}))


if __name__ == "__main__":
    main()
