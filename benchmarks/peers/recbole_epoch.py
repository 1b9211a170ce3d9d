"""RecBole's training epochs on the same interactions, one process: the seconds of each, as JSON.

With --evaluate, the seconds of its full ranking of all users on test instead.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

CONFIG = {
    "embedding_size": 32,
    "train_batch_size": 2048,
    "eval_batch_size": 2**22,  # scores in one batch: all users
    "learner": "adam",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1, "dynamic": False, "candidate_num": 0},
    "n_layers": 2,
    "reg_weight": 1e-5,
    "type": "ED",  # of SGL: edges are dropped
    "drop_ratio": 0.1,
    "benchmark_filename": ["train", "test", "test"],
    "load_col": {"inter": ["user_id", "item_id"]},
    "eval_args": {"group_by": "user", "order": "RO", "mode": "full"},
    "metrics": ["Precision", "Recall", "NDCG", "MAP", "MRR", "Hit"],
    "topk": [5, 10, 20],
    "valid_metric": "NDCG@20",
    "use_gpu": False,
    "show_progress": False,
    "state": "CRITICAL",
    "seed": 0,
    "reproducibility": False,
}
NAME = "ml-100k-split"  # under the name ml-100k it would use its own sample
MODELS = {"mf": "BPR", "lightgcn": "LightGCN", "sgl": "SGL"}


def convert(root: Path, folder: Path, pairs: Path | None) -> None:
    """Write the split of ML-100K, or ``pairs`` and a test part that is not used, in RecBole's format."""
    for part in ("train", "test"):
        if pairs:
            rows = [f"{user}\t{item}" for user, item in np.load(pairs)[: None if part == "train" else 1].tolist()]
        else:
            with (root / "ml-100k" / f"100k_{part}.csv").open() as source:
                rows = [f"{row['user']}\t{row['item']}" for row in csv.DictReader(source)]
        (folder / f"{NAME}.{part}.inter").write_text("\n".join(["user_id:token\titem_id:token", *rows]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", choices=MODELS, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--pairs", type=Path, help="Other interactions than those of ML-100K: (n, 2), .npy.")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    root = Path(os.environ["ORCHESTRATOR_DATA"]).absolute()
    pairs = args.pairs and args.pairs.absolute()

    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.trainer import Trainer
    from recbole.utils import get_model

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it writes logs and checkpoints to the working folder
        Path(NAME).mkdir()
        convert(root, Path(NAME), pairs)
        config = Config(MODELS[args.backbone], NAME, config_dict=CONFIG | {"data_path": folder})
        logging.disable(logging.CRITICAL)
        dataset = create_dataset(config)
        train, _, test = data_preparation(config, dataset)
        model = get_model(config["model"])(config, train.dataset)
        trainer = Trainer(config, model)
        seconds = []
        for epoch in range(args.epochs):
            started = time.perf_counter()
            if args.evaluate:
                trainer.evaluate(test, load_best_model=False)
            else:
                trainer._train_epoch(train, epoch)
            seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "examples": len(train.dataset), "numpy": np.__version__}))


if __name__ == "__main__":
    main()
