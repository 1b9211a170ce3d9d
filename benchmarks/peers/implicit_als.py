"""ALS of ``implicit`` on MovieLens-100K's split: its factors to a file, its seconds as JSON."""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from pathlib import Path

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("dim", "epochs", "seed", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--regularization", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with (Path(os.environ["ORCHESTRATOR_DATA"]) / "ml-100k" / "100k_train.csv").open() as source:
        pairs = np.array([(int(row["user"]), int(row["item"])) for row in csv.DictReader(source)])
    # Its confidence is the value of an entry, ours 1 + alpha.
    values = np.full(len(pairs), 1 + args.alpha, np.float32)
    interactions = csr_matrix((values, (pairs[:, 0], pairs[:, 1])), shape=(943, 1682))
    model = AlternatingLeastSquares(
        factors=args.dim, regularization=args.regularization, alpha=1.0, iterations=args.epochs, use_cg=False,
        num_threads=args.threads, random_state=args.seed,
    )  # fmt: skip
    started = time.perf_counter()
    model.fit(interactions, show_progress=False)
    seconds = time.perf_counter() - started
    np.savez(args.out, users=model.user_factors, items=model.item_factors)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
