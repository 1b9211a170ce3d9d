"""Our bi-encoder on STS-B with MiniLM, one process: training steps or sentences encoded, and their seconds, as JSON."""

from __future__ import annotations

import argparse
import json
import time

import torch
from harness import data_root

from workloads.bi_encoder.params import Params
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.data.pairs.load import load_pairs
from workloads.encoders.text import encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=("train", "encode"), required=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--steps", type=int, default=10, help="in each of --rounds, of 32 pairs each")
    parser.add_argument("--rounds", type=int, default=3, help="after one that is not counted")
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    params = Params(dataset="stsb", encoder="minilm", batch_size=32, max_length=256)
    runtime = Runtime(
        device=torch.device("cpu"), data=data_root(), seed=0, epochs=1 + args.rounds, steps_per_epoch=args.steps,
        precision=args.precision,
    )  # fmt: skip
    workload = BiEncoder(params, runtime)
    sentences = load_pairs("stsb", runtime.data).train.first
    seconds = []
    for epoch in range(1, 2 + args.rounds):
        started = time.perf_counter()
        if args.task == "train":
            workload.train_epoch(epoch)
        else:
            encode(workload.encoder, workload.tokenizer(sentences))
        seconds.append(time.perf_counter() - started)
    count = params.batch_size * args.steps if args.task == "train" else len(sentences)
    print(json.dumps({"seconds": seconds[1:], "count": count}))


if __name__ == "__main__":
    main()
