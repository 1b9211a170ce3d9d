"""Fine-tuning and encoding of STS-B with MiniLM compared with sentence-transformers as shipped and with bf16.

Same model, data, batch of 32 pairs and optimiser; rounds of ten steps, without the first round. Encoding takes
the 5,749 first sentences of train, with tokenisation. bf16 is faster only if the processor supports it.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from harness import HERE, Benchmark, Contestant, answer, arguments, data_root, peers_python, spawn, thread_count

from workloads.encoders.sources import folder_of

PEER = "sentence-transformers"


def rate(command: list[str], task: str, precision: str, threads: int) -> float:
    """Pairs or sentences per second of one process of a contestant."""
    words = [*command, "--task", task, "--precision", precision, "--threads", str(threads)]
    result = answer(spawn(words, threads=threads)[0])
    return float(result["count"] / statistics.median(result["seconds"]))


def contestants(threads: int) -> dict[str, Contestant]:
    ours = [sys.executable, str(HERE / "ours_bi_encoder.py")]
    peer = [peers_python("peers-neural"), str(HERE / "peers" / "sentence_transformers_sts.py")]
    peer += ["--model", str(folder_of("minilm"))]
    return {
        f"{system} {task} {precision}{thread_count(threads)}": partial(rate, command, task, precision, threads)
        for task in ("train", "encode")
        for precision in ("fp32", "bf16")
        for system, command in (("ours", ours), (PEER, peer))
    }


def main() -> None:
    parser = arguments("The bi-encoder compared with sentence-transformers.", rounds=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    data_root("stsb")
    bench, suffix = Benchmark("bi_encoder_speed", args.rounds, args.patience), thread_count(args.threads)
    bench.run(contestants(args.threads))
    for task, unit, at_least in (("train", "pairs/s", 2.5), ("encode", "sentences/s", 2.2)):
        mixed, exact = (f"ours {task} {precision}{suffix}" for precision in ("bf16", "fp32"))
        shipped, autocast = (f"{PEER} {task} {precision}{suffix}" for precision in ("fp32", "bf16"))
        bench.compare(f"{task}, bf16{suffix}", unit, mixed, shipped, at_least=at_least)
        bench.compare(f"{task}, bf16{suffix}", unit, mixed, autocast)
        bench.compare(f"{task}, fp32{suffix}", unit, exact, shipped, at_least=1.6 if task == "train" else None)
    bench.finish()


if __name__ == "__main__":
    main()
