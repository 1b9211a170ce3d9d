"""Training epochs of graph contrastive learning on ML-100K compared with our LightGCN and with RecBole's SGL.

As ``mf_epoch.py``: two layers, d = 32, batches of 2,048, Adam, 80,000 interactions, one and two threads; the median of
the epochs from the fifth on, then of the rounds. NCL contrasts with prototypes from the first epoch. Without the peers
of ``setup.sh`` RecBole is left out. ``--ml-1m`` compares SGL with LightGCN on MovieLens-1M instead, alone.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import HERE, Benchmark, arguments, peers_python, thread_count
from mf_epoch import examples_a_second

METHODS = ("sgl", "simgcl", "lightgcl", "ncl")


def main() -> None:
    parser = arguments("Epochs of graph contrastive learning on ML-100K.", rounds=3)
    parser.add_argument("--without-peers", action="store_true", help="Leave RecBole out.")
    parser.add_argument("--ml-1m", action="store_true", help="SGL and LightGCN on MovieLens-1M.")
    args = parser.parse_args()
    bench = Benchmark(f"graph_contrast_epoch{'-ml-1m' * args.ml_1m}", args.rounds, args.patience)
    ours = [sys.executable, str(HERE / "ours_epoch.py"), "--backbone", "lightgcn"]
    if args.ml_1m:
        ours += ["--dataset", "ml-1m"]
    methods = METHODS[: 1 if args.ml_1m else None]
    with_peers = not (args.without_peers or args.ml_1m)
    for threads in (1, 2):
        suffix = thread_count(threads)
        commands = {"lightgcn": (ours, 16), **{name: ([*ours, "--contrast", name], 8) for name in methods}}
        if with_peers:
            commands["RecBole sgl"] = (
                [peers_python(), str(HERE / "peers" / "recbole_epoch.py"), "--backbone", "sgl"], 4
            )  # fmt: skip
        bench.run(
            {
                name + suffix: partial(examples_a_second, command, epochs, threads)
                for name, (command, epochs) in commands.items()
            }
        )
        for name in methods:
            least = 1 / 4 if name == "sgl" else None
            bench.compare(f"{name}{suffix}", "ex/s", name + suffix, f"lightgcn{suffix}", at_least=least)
        if with_peers:
            bench.compare(f"SGL{suffix}", "ex/s", f"sgl{suffix}", f"RecBole sgl{suffix}", at_least=1)
    bench.finish()


if __name__ == "__main__":
    main()
