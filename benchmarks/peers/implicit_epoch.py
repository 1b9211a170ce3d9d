"""The BPR of ``implicit`` (sequential SGD, compiled, no batches), one process: the seconds of each epoch, as JSON."""

from __future__ import annotations

import argparse
import csv
import json
import os
from pathlib import Path

import numpy as np
from implicit.cpu.bpr import BayesianPersonalizedRanking
from scipy.sparse import csr_matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--pairs", type=Path, help="Other interactions than those of ML-100K: (n, 2), .npy.")
    args = parser.parse_args()
    if args.pairs:
        pairs = np.load(args.pairs)
    else:
        with (Path(os.environ["ORCHESTRATOR_DATA"]) / "ml-100k" / "100k_train.csv").open() as source:
            pairs = np.array([(int(row["user"]), int(row["item"])) for row in csv.DictReader(source)])
    interactions = csr_matrix((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])))
    model = BayesianPersonalizedRanking(
        factors=32, learning_rate=0.01, regularization=0.01, iterations=args.epochs, num_threads=args.threads
    )
    seconds: list[float] = []
    model.fit(interactions, show_progress=False, callback=lambda epoch, elapsed, *_: seconds.append(elapsed))
    print(json.dumps({"seconds": seconds, "examples": len(pairs)}))


if __name__ == "__main__":
    main()
