"""MF-BPR as in the code of papers: a DataLoader whose collate draws each example's negative in Python.

Plain PyTorch, one process: the seconds of each training epoch, as JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIM, BATCH, LR = 32, 2048, 1e-3


class Model(nn.Module):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(n_users, DIM), nn.Embedding(n_items, DIM)

    def forward(self, users: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        user = self.users(users)
        difference = (user * self.items(positives)).sum(1) - (user * self.items(negatives)).sum(1)
        return -nn.functional.logsigmoid(difference).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with (Path(os.environ["ORCHESTRATOR_DATA"]) / "ml-100k" / "100k_train.csv").open() as source:
        pairs = [(int(row["user"]), int(row["item"])) for row in csv.DictReader(source)]
    n_users, n_items = 1 + max(user for user, _ in pairs), 1 + max(item for _, item in pairs)
    positives: dict[int, set[int]] = {user: set() for user, _ in pairs}
    for user, item in pairs:
        positives[user].add(item)
    unobserved = {user: list(set(range(n_items)) - items) for user, items in positives.items()}

    def collate(batch: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        negatives = [random.choice(unobserved[user]) for user, _ in batch]
        return (
            torch.tensor([user for user, _ in batch]),
            torch.tensor([item for _, item in batch]),
            torch.tensor(negatives),
        )

    loader: Iterable[tuple[torch.Tensor, ...]] = DataLoader(
        cast("Dataset[tuple[int, int]]", pairs), batch_size=BATCH, shuffle=True, collate_fn=collate
    )
    model = Model(n_users, n_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    seconds = []
    for _ in range(args.epochs):
        started = time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "examples": len(pairs)}))


if __name__ == "__main__":
    main()
