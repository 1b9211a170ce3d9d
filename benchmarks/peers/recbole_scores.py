"""What RecBole's models learn from given interactions, for our evaluation: embeddings or scores, and the seconds.

A model that is trained is written every few epochs: ``users`` (S, U, d) and ``items`` (S, I, d) of S moments. EASE and
ItemKNN are fitted as a whole: ``scores`` (U, I).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.trainer import NCLTrainer, Trainer
from recbole.utils import get_model

NAME = "interactions"
FITTED = ("EASE", "ItemKNN")
CONFIG = {
    "embedding_size": 32,
    "train_batch_size": 2048,
    "learner": "adam",
    "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1, "dynamic": False, "candidate_num": 0},
    "benchmark_filename": ["train", "all", "all"],
    "load_col": {"inter": ["user_id", "item_id"]},
    "eval_args": {"group_by": "user", "order": "RO", "mode": "full"},
    "use_gpu": False,
    "show_progress": False,
    "state": "CRITICAL",
    "reproducibility": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", type=Path, required=True, help="pairs (n, 2) as .npy, users and items from 0")
    parser.add_argument("--shape", type=int, nargs=2, required=True, metavar=("USERS", "ITEMS"))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", default="{}", help="RecBole's settings as JSON")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    out = args.out.absolute()
    pairs = np.load(args.train)
    users, items = args.shape
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it writes logs and checkpoints to the working folder
        Path(NAME).mkdir()
        # It numbers what it meets, so every user and item has to occur in a file; only train is learnt from.
        every = [(number % users, number % items) for number in range(max(users, items))]
        for part, rows in (("train", pairs.tolist()), ("all", every)):
            lines = ["user_id:token\titem_id:token", *(f"{user}\t{item}" for user, item in rows)]
            Path(NAME, f"{NAME}.{part}.inter").write_text("\n".join(lines) + "\n")
        settings = {**CONFIG, **json.loads(args.settings), "seed": args.seed, "data_path": folder}
        config = Config(args.model, NAME, config_dict=settings)
        logging.disable(logging.CRITICAL)
        dataset = create_dataset(config)
        train, _, _ = data_preparation(config, dataset)
        ids = [
            torch.tensor([dataset.field2token_id[field][str(number)] for number in range(count)])
            for field, count in (("user_id", users), ("item_id", items))
        ]
        torch.manual_seed(args.seed)
        started = time.perf_counter()
        model = get_model(args.model)(config, train.dataset)
        if args.model in FITTED:
            seconds = time.perf_counter() - started
            np.savez(out, scores=_scores(model, *ids))
        else:
            seconds = _train(model, config, train, ids, args.epochs, args.every, out)
    print(json.dumps({"seconds": seconds}))


def _scores(model: torch.nn.Module, users: torch.Tensor, items: torch.Tensor) -> np.ndarray:
    flat = model.full_sort_predict({"user_id": users})
    return flat.view(len(users), -1)[:, items].float().numpy()


def _train(model, config, train, ids, epochs: int, every: int, out: Path) -> float:
    """Train as RecBole does, without its evaluation; returns the seconds without the writing."""
    trainer = (NCLTrainer if config["model"] == "NCL" else Trainer)(config, model)
    moments = []
    seconds = 0.0
    for epoch in range(epochs):
        started = time.perf_counter()
        if config["model"] == "NCL" and epoch % config["m_step"] == 0:
            trainer.model.e_step()
        trainer._train_epoch(train, epoch)
        seconds += time.perf_counter() - started
        if (epoch + 1) % every == 0 or epoch + 1 == epochs:
            model.eval()
            with torch.no_grad():
                parts = model.forward(model.train_graph) if config["model"] == "SGL" else model.forward()
            moments.append([part[number].float().numpy() for part, number in zip(parts[:2], ids)])
            model.train()
    np.savez(out, **{name: np.stack(part) for name, part in zip(("users", "items"), zip(*moments))})
    return seconds


if __name__ == "__main__":
    main()
