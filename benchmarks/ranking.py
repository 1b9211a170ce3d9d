"""Full ranking of all users of ML-100K: scores, masking, top-k and all metrics, compared with RecBole's evaluation.

All 943 users against 1,682 items on the test split. RecBole measures six metrics at k = 5, 10, 20; ours measures
nine and the AUC, and four of what is shown. The first call of a process, which loads compiled code, does not count.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import HERE, Benchmark, arguments, peers_python, thread_count
from mf_epoch import median_epoch

CALLS = 10


def seconds_a_call(command: list[str], threads: int) -> float:
    return median_epoch([*command, "--backbone", "mf", "--evaluate"], CALLS, threads, warm_up=1)[0]


def main() -> None:
    args = arguments("Full ranking of all users of ML-100K.", rounds=3).parse_args()
    ours = [sys.executable, str(HERE / "ours_epoch.py")]
    recbole = [peers_python(), str(HERE / "peers" / "recbole_epoch.py")]
    bench = Benchmark("ranking", args.rounds, args.patience)
    for threads in (1, 2):
        suffix = thread_count(threads)
        bench.run(
            {
                f"ours{suffix}": partial(seconds_a_call, ours, threads),
                f"RecBole{suffix}": partial(seconds_a_call, recbole, threads),
            }
        )
        what = f"all users ranked and measured{suffix}"
        bench.hold(what, "s", f"ours{suffix}", at_most=0.3)
        bench.compare(what, "s", f"ours{suffix}", f"RecBole{suffix}", at_most=1)
    bench.finish()


if __name__ == "__main__":
    main()
