"""Images a second of a whole SimCLR step beside lightly's: input, augmentation, forward, loss, backward, optimiser.

ResNet-18 with CIFAR's stem on CIFAR's images of 32 x 32, batches of 256, two threads each. lightly as shipped is in
float32 with two loader workers; the same under bf16 autocast stands beside it. Where the CPU has no bf16 instructions,
ours in float32 is the row that counts.

``--device cuda`` has no peer: images a second on one GPU, how much of the step the GPU is busy, and with ``--peak`` its
share of that many bf16 operations a second (dense: 989e12 for an H100 SXM, 312e12 for an A100).

    python benchmarks/simclr_step.py --device cuda --encoder resnet50 --batch 1024 --peak 989e12
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import HERE, Benchmark, Contestant, answer, arguments, data_root, peers_python, spawn

BATCH, STEPS, WARM, THREADS = 256, 4, 1, 2
GPU_STEPS = 20
"""Steps of a GPU between two looks at the clock; the CPU's are timed one by one."""

LOSSES = ("infonce", "bcl")


def main() -> None:
    parser = arguments("A SimCLR step beside lightly's.", rounds=3)
    parser.add_argument("--ours", choices=LOSSES)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--encoder", choices=("resnet18", "resnet34", "resnet50"), default="resnet18")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--peak", type=float, help="bf16 operations a second of the GPU, without sparsity")
    asked = parser.parse_args()
    data_root("cifar10/train.parquet")
    if asked.ours:
        print(json.dumps(steps(asked.ours, asked.precision, asked.device, asked.encoder, asked.batch)))
        return
    if asked.device == "cuda":
        on_gpu(asked)
        return
    if (asked.encoder, asked.batch) != ("resnet18", BATCH):
        parser.error("--encoder and --batch go with --device cuda: lightly's step is measured with one of each")
    bench, half = Benchmark("simclr_step", asked.rounds, asked.patience), has_bf16()
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


def on_gpu(asked: Any) -> None:
    """Rows of one GPU, encoder and batch."""
    command = [sys.executable, str(HERE / "simclr_step.py"), "--device", "cuda", "--encoder", asked.encoder]
    command += ["--batch", str(asked.batch), "--precision", asked.precision, "--ours"]
    last: dict[str, dict[str, Any]] = {}

    def images(loss: str) -> float:
        last[loss] = answer(spawn([*command, loss], env={"PYTHONPATH": str(HERE.parent)})[0])
        return float(last[loss]["images"] / statistics.median(last[loss]["seconds"]))

    def peak() -> float:
        seconds = statistics.median(last["infonce"]["seconds"])
        return float(last["infonce"]["flops"] * asked.batch / seconds / asked.peak)

    bench = Benchmark(f"simclr_step-{asked.encoder}-{asked.batch}-{asked.precision}", asked.rounds, asked.patience)
    found: dict[str, Contestant] = {
        "ours": partial(images, "infonce"), "busy": lambda: float(last["infonce"]["busy"]),
        "ours, BCL": partial(images, "bcl"),
    }  # fmt: skip
    bench.run({**found, "peak": peak} if asked.peak else found)
    bench.hold("step", "images/s", "ours")
    bench.hold("GPU busy", "of 1", "busy", at_least=0.95)
    if asked.peak:
        bench.hold(f"share of {asked.peak:.3g} operations/s", "of 1", "peak")
    bench.compare("step with BCL", "images/s", "ours, BCL", "ours")
    bench.finish()


def contestants(half: bool) -> dict[str, Contestant]:
    lightly = [peers_python("peers-neural"), str(HERE / "peers" / "lightly_step.py"), "--batch", str(BATCH)]
    lightly += ["--steps", str(WARM + STEPS), "--threads", str(THREADS)]
    found: dict[str, Contestant] = {}
    for precision in ("bf16", "fp32") if half else ("fp32",):
        ours = [sys.executable, str(HERE / "simclr_step.py"), "--precision", precision]
        found[f"ours, {precision}"] = partial(rate, [*ours, "--ours", "infonce"])
        found[f"lightly, {precision}"] = partial(rate, [*lightly, "--precision", precision])
    best = [sys.executable, str(HERE / "simclr_step.py"), "--precision", "bf16" if half else "fp32", "--ours", "bcl"]
    found[f"ours, {'bf16' if half else 'fp32'}, BCL"] = partial(rate, best)
    found["BCL's share"] = partial(share, best)
    return found


def told(command: list[str]) -> dict[str, Any]:
    return answer(spawn(command, threads=THREADS, env={"PYTHONPATH": str(HERE.parent)})[0])


def rate(command: list[str]) -> float:
    """Images a second of one process of a contestant."""
    found = told(command)
    return float(found["images"] / statistics.median(found["seconds"][WARM:]))


def share(command: list[str]) -> float:
    """What of a step the weights of BCL take, beyond InfoNCE's loss."""
    found = told(command)
    return float(found["weights"] / statistics.median(found["seconds"][WARM:]))


def has_bf16() -> bool:
    """Whether the CPU multiplies bf16 in hardware."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def steps(loss: str, precision: Any, device: str, encoder: str, batch: int) -> dict[str, Any]:
    """Seconds of each step, and of BCL's weights alone; of a GPU, operations for an image and its busy share, too."""
    import torch

    from workloads.contract import Runtime
    from workloads.losses.contrastive import bcl_weights
    from workloads.simclr.workload import SimCLR

    if device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    params = {"dataset": "cifar-10-subset", "encoder": encoder, "batch_size": batch, "optimizer": "sgd"}
    fixed = {"alpha": 0.9} if loss == "bcl" else {}
    at_once, epochs = (1, WARM + STEPS) if device == "cpu" else (GPU_STEPS, WARM + STEPS + 1)  # the last is profiled
    runtime = Runtime(
        device=torch.device(device), data=data_root("cifar10/train.parquet"), seed=0, epochs=epochs,
        steps_per_epoch=at_once, precision=precision,
    )  # fmt: skip
    workload, spent = SimCLR(SimCLR.Params(loss=loss, lr=0.06, **params, **fixed), runtime), []
    for epoch in range(1, WARM + STEPS + 1):
        started = time.perf_counter()
        workload.train_epoch(epoch)  # ends with a value read from the device
        spent.append((time.perf_counter() - started) / at_once)
    if device == "cuda":
        return {"images": batch, "seconds": spent[WARM:], **used(workload, epochs)}
    negatives, weighed = torch.rand(2 * BATCH, 2 * BATCH - 2), []
    for _ in range(5):
        started = time.perf_counter()
        bcl_weights(negatives, alpha=0.9, beta=0.9, tau=0.1)
        weighed.append(time.perf_counter() - started)
    return {"images": batch, "seconds": spent, "weights": statistics.median(weighed)}


def used(workload: Any, epoch: int) -> dict[str, float]:
    """Of the GPU: operations that an image's two views need, and the share of an epoch in which it is busy."""
    import torch
    from device_share import busy_share, flops_per_sample

    from workloads.augment import normalise

    busy = busy_share(lambda: workload.train_epoch(epoch))
    views = normalise(workload.data.train.take(torch.arange(8)))
    return {"busy": busy, "flops": 2 * flops_per_sample(workload.model, views)}


if __name__ == "__main__":
    main()
