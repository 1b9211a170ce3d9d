"""Sequential SGD of matrix factorisation on a CPU, compared with implicit and with the thesis' programs.

implicit runs in the same rounds. The authors' programs are not installed here: their rates on ML-100K were measured
once, on two cores of an AMD EPYC, and are constants below; targets are multiples of them. d = 32. The first epochs,
with the compilation, do not count.

``--ml-1m`` compares the seconds of 100 epochs on MovieLens-1M instead, with implicit and with RecBole's MF: a hundred
times the median of an epoch, of which a few are measured.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from harness import HERE, Benchmark, Contestant, arguments, data_root, peers_python, thread_count
from mf_epoch import RECBOLE, examples_a_second, median_epoch

from workloads.data import load_interactions

AUTHORS_BNS, AUTHORS_DNS = 4_000, 6_200
"""Examples per second."""
AUTHORS_ROUND = 6.9 + 15.2
"""Seconds of BPRAC's E-step and M-step, with 943,000 triples."""

OURS, IMPLICIT, GOWALLA = "sequential", "implicit", "sequential, Gowalla's size"


def contestants() -> dict[str, Contestant]:
    ours, found = [sys.executable, str(HERE / "sequential_epoch.py")], {}
    implicit = [peers_python(), str(HERE / "peers" / "implicit_epoch.py")]
    for threads in (1, 2):
        suffix = thread_count(threads)
        for name, command, epochs in (
            (OURS, ours, 100),
            (IMPLICIT, implicit, 40),
            (GOWALLA, [*ours, "--data", "gowalla-size"], 8),
        ):
            found[name + suffix] = partial(examples_a_second, command, epochs, threads)
    for sampler, epochs in (("popularity", 100), ("dns", 100), ("bns", 4), ("aobpr", 2)):
        found[f"{OURS}, {sampler}"] = partial(examples_a_second, [*ours, "--sampler", sampler], epochs, 1)
    found[f"{OURS}, round"] = lambda: median_epoch([*ours, "--round"], 10, 1)[0]
    found[f"{GOWALLA}, dns"] = partial(examples_a_second, [*ours, "--data", "gowalla-size", "--sampler", "dns"], 4, 1)
    return found


def movielens_1m(bench: Benchmark) -> None:
    """100 epochs on the training part of a random split."""
    pairs = load_interactions("ml-1m", data_root("ml-1m/ratings.csv.gz")).train
    peers = HERE / "peers"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pairs.npy")
        np.save(file, pairs)
        commands = {
            OURS: ([sys.executable, str(HERE / "sequential_epoch.py"), "--data", "ml-1m"], 12),
            IMPLICIT: ([peers_python(), str(peers / "implicit_epoch.py"), "--pairs", str(file)], 12),
            RECBOLE: (
                [peers_python(), str(peers / "recbole_epoch.py"), "--backbone", "mf", "--pairs", str(file)], 3,
            ),
        }  # fmt: skip
        bench.run({name: partial(seconds_of_100, *words) for name, words in commands.items()})
    for peer in (IMPLICIT, RECBOLE):
        bench.compare("100 epochs of BPR on MovieLens-1M, 1 thread", "s", OURS, peer, at_most=1)
    bench.notes.append("RecBole trains with Adam in batches of 2,048. implicit skips draws that hit a positive.")


def seconds_of_100(command: list[str], epochs: int) -> float:
    """100 times the median epoch of one process of a contestant."""
    return 100 * median_epoch(command, epochs, 1)[0]


def main() -> None:
    parser = arguments("Sequential SGD on a CPU, ours compared with implicit.", rounds=3)
    parser.add_argument("--ml-1m", action="store_true", help="100 epochs on MovieLens-1M, also RecBole's MF.")
    args = parser.parse_args()
    if args.ml_1m:
        bench = Benchmark("sequential-ml-1m", args.rounds, args.patience)
        movielens_1m(bench)
        bench.finish()
        return
    bench = Benchmark("sequential", args.rounds, args.patience)
    bench.run(contestants())
    for threads in (1, 2):
        suffix = thread_count(threads)
        bench.compare(f"BPR{suffix}", "ex/s", OURS + suffix, IMPLICIT + suffix, at_least=1)
        bench.hold(f"BPR, Gowalla's size{suffix}", "ex/s", GOWALLA + suffix)
    bench.hold("DNS, 5 candidates (authors 6,200)", "ex/s", f"{OURS}, dns", at_least=1000 * AUTHORS_DNS)
    bench.hold("DNS, Gowalla's size", "ex/s", f"{GOWALLA}, dns")
    bench.hold("BNS, exact (authors 4,000)", "ex/s", f"{OURS}, bns", at_least=50 * AUTHORS_BNS)
    bench.hold("BPRAC, a round (authors 22 s)", "s", f"{OURS}, round", at_most=AUTHORS_ROUND / 100)
    bench.hold("PNS", "ex/s", f"{OURS}, popularity")
    bench.hold("AOBPR, exact", "ex/s", f"{OURS}, aobpr")
    bench.notes.append("implicit counts draws: one that hits a positive is skipped, not drawn again.")
    bench.finish()


if __name__ == "__main__":
    main()
