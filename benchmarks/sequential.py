"""Sequential SGD of matrix factorisation on a CPU, compared with implicit and with the thesis' programs.

implicit runs in the same rounds. The authors' programs are not installed here: their rates on ML-100K were measured
once, on two cores of an AMD EPYC, and are constants below; targets are multiples of them. d = 32. The first epochs,
with the compilation, do not count.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import HERE, Benchmark, Contestant, arguments, peers_python, thread_count
from mf_epoch import examples_a_second, median_epoch

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


def main() -> None:
    args = arguments("Sequential SGD on a CPU, ours compared with implicit.", rounds=3).parse_args()
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
