"""Images per second of a whole SimCLR step compared with lightly's, from input to optimiser.

ResNet-18 with CIFAR's stem on CIFAR's images of 32 x 32, batches of 256, two threads each. lightly as shipped uses
float32 and two loader workers; it is also measured with bf16 autocast. On a CPU without bf16 instructions, our row in
float32 counts.

``--device cuda`` has no peer: images per second on one GPU, the share of the step in which the GPU is busy, and with
``--peak`` its share of that many bf16 operations per second (dense: 989e12 for an H100 SXM, 312e12 for an A100).

    python benchmarks/simclr_step.py --device cuda --encoder resnet50 --batch 1024 --peak 989e12
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from functools import partial
from typing import Any

from harness import HERE, Benchmark, Contestant, answer, arguments, data_root, peers_python, spawn

from orchestrator.provenance.machine import has_bf16_instructions

BATCH, STEPS, WARM, THREADS = 256, 4, 1, 2
GPU_STEPS = 20
"""Number of GPU steps that are timed together; CPU steps are timed one by one."""

LOSSES = ("infonce", "bcl")


def main() -> None:
    parser = arguments("A SimCLR step compared with lightly's.", rounds=3)
    parser.add_argument("--ours", choices=LOSSES)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--encoder", choices=("resnet18", "resnet34", "resnet50"), default="resnet18")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--peak", type=float, help="bf16 operations a second of the GPU, without sparsity")
    args = parser.parse_args()
    data_root("cifar10/train.parquet")
    if args.ours:
        print(json.dumps(steps(args.ours, args.precision, args.device, args.encoder, args.batch)))
        return
    if args.device == "cuda":
        on_gpu(args)
        return
    if (args.encoder, args.batch) != ("resnet18", BATCH):
        parser.error("--encoder and --batch go with --device cuda: lightly's step is measured with one of each")
    bench, half = Benchmark("simclr_step", args.rounds, args.patience), has_bf16_instructions()
    bench.run(contestants(half))
    best = "ours, bf16" if half else "ours, fp32"
    bench.compare(f"step, {best}", "images/s", best, "lightly, fp32", at_least=2.5 if half else 1)
    if half:
        bench.compare("step, ours, bf16", "images/s", "ours, bf16", "lightly, bf16")
    bench.compare("step, ours, fp32", "images/s", "ours, fp32", "lightly, fp32")
    bench.compare("step with BCL", "images/s", f"{best}, BCL", best)
    bench.hold("BCL's share of a step", "of 1", "BCL's share", at_most=0.01)
    if not half:
        bench.notes.append("This CPU has no bf16 instructions: float32 against float32 is what can be compared.")
    bench.finish()


def on_gpu(args: Any) -> None:
    """Rows for one GPU, encoder and batch size."""
    command = [sys.executable, str(HERE / "simclr_step.py"), "--device", "cuda", "--encoder", args.encoder]
    command += ["--batch", str(args.batch), "--precision", args.precision, "--ours"]

    def infonce() -> dict[str, float]:
        result = measured([*command, "infonce"], None)
        figures = {"ours": result["images"] / median_step(result), "busy": result["busy"]}
        return figures | ({"peak": result["flops"] * figures["ours"] / args.peak} if args.peak else {})

    bench = Benchmark(f"simclr_step-{args.encoder}-{args.batch}-{args.precision}", args.rounds, args.patience)
    bench.run({"ours": infonce, "ours, BCL": partial(rate, [*command, "bcl"], None)})
    bench.hold("step", "images/s", "ours")
    bench.hold("GPU busy", "of 1", "busy", at_least=0.95)
    if args.peak:
        bench.hold(f"share of {args.peak:.3g} operations/s", "of 1", "peak")
    bench.compare("step with BCL", "images/s", "ours, BCL", "ours")
    bench.finish()


def contestants(half: bool) -> dict[str, Contestant]:
    lightly = [peers_python("peers-neural"), str(HERE / "peers" / "lightly_step.py"), "--batch", str(BATCH)]
    lightly += ["--steps", str(WARM + STEPS), "--threads", str(THREADS)]
    result: dict[str, Contestant] = {}
    for precision in ("bf16", "fp32") if half else ("fp32",):
        ours = [sys.executable, str(HERE / "simclr_step.py"), "--precision", precision]
        result[f"ours, {precision}"] = partial(rate, [*ours, "--ours", "infonce"])
        result[f"lightly, {precision}"] = partial(rate, [*lightly, "--precision", precision])
    best = "bf16" if half else "fp32"
    command = [sys.executable, str(HERE / "simclr_step.py"), "--precision", best, "--ours", "bcl"]
    result[f"ours, {best}, BCL"] = partial(rate, command)
    result["BCL's share"] = partial(share, command)
    return result


def measured(command: list[str], threads: int | None) -> dict[str, Any]:
    return answer(spawn(command, threads=threads)[0])


def median_step(result: dict[str, Any]) -> float:
    """Seconds of a step after those that are not counted."""
    return statistics.median(result["seconds"][WARM:])


def rate(command: list[str], threads: int | None = THREADS) -> float:
    """Images per second of one process of a contestant."""
    result = measured(command, threads)
    return float(result["images"] / median_step(result))


def share(command: list[str]) -> float:
    """Share of a step for the weights of BCL, in addition to InfoNCE's loss."""
    result = measured(command, THREADS)
    return float(result["weights"] / median_step(result))


def steps(loss: str, precision: Any, device: str, encoder: str, batch: int) -> dict[str, Any]:
    """Seconds of each step and of BCL's weights; on a GPU also operations per image and the busy share."""
    import torch

    from workloads.contract import Runtime
    from workloads.losses.contrastive import bcl_weights
    from workloads.simclr.workload import SimCLR

    if device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    params = {"dataset": "cifar-10-subset", "encoder": encoder, "batch_size": batch, "optimizer": "sgd"}
    fixed = {"alpha": 0.9} if loss == "bcl" else {}
    at_once, epochs = (
        (1, WARM + STEPS) if device == "cpu" else (GPU_STEPS, WARM + STEPS + 1)
    )  # the last one is profiled
    runtime = Runtime(
        device=torch.device(device), data=data_root("cifar10/train.parquet"), seed=0, epochs=epochs,
        steps_per_epoch=at_once, precision=precision,
    )  # fmt: skip
    workload, spent = SimCLR(SimCLR.Params(loss=loss, lr=0.06, **params, **fixed), runtime), []
    for epoch in range(1, WARM + STEPS + 1):
        started = time.perf_counter()
        workload.train_epoch(epoch)  # ends with a read from the device
        spent.append((time.perf_counter() - started) / at_once)
    if device == "cuda":
        return {"images": batch, "seconds": spent, **used(workload, epochs)}
    negatives, weighed = torch.rand(2 * BATCH, 2 * BATCH - 2), []
    for _ in range(5):
        started = time.perf_counter()
        bcl_weights(negatives, alpha=0.9, beta=0.9, tau=0.1)
        weighed.append(time.perf_counter() - started)
    return {"images": batch, "seconds": spent, "weights": statistics.median(weighed)}


def used(workload: Any, epoch: int) -> dict[str, float]:
    """Operations for the two views of an image, and the share of an epoch in which the GPU is busy."""
    import torch
    from device_share import busy_share, flops_per_sample

    from workloads.augment import normalise

    busy = busy_share(lambda: workload.train_epoch(epoch))
    views = normalise(workload.data.train.take(torch.arange(8)))
    return {"busy": busy, "flops": 2 * flops_per_sample(workload.model, views)}


if __name__ == "__main__":
    main()
