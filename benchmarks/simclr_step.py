"""Images a second of a whole SimCLR step beside lightly's: input, augmentation, forward, loss, backward, optimiser.

ResNet-18 with CIFAR's stem on CIFAR's images of 32 x 32, batches of 256, two threads each. lightly as shipped is in
float32 with two loader workers; the same under bf16 autocast stands beside it. Where the CPU has no bf16 instructions,
ours in float32 is the row that counts.
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
LOSSES = ("infonce", "bcl")


def main() -> None:
    parser = arguments("A SimCLR step beside lightly's.", rounds=3)
    parser.add_argument("--ours", choices=LOSSES)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    asked = parser.parse_args()
    data_root("cifar10/train.parquet")
    if asked.ours:
        print(json.dumps(steps(asked.ours, asked.precision)))
        return
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


def steps(loss: str, precision: Any) -> dict[str, Any]:
    """Seconds of each step, and of BCL's weights alone."""
    import torch

    from workloads.contract import Runtime
    from workloads.losses.contrastive import bcl_weights
    from workloads.simclr.workload import SimCLR

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    params = {"dataset": "cifar-10-subset", "encoder": "resnet18", "batch_size": BATCH, "optimizer": "sgd"}
    fixed = {"alpha": 0.9} if loss == "bcl" else {}
    runtime = Runtime(
        device=torch.device("cpu"), data=data_root("cifar10/train.parquet"), seed=0, epochs=WARM + STEPS,
        steps_per_epoch=1, precision=precision,
    )  # fmt: skip
    workload, spent = SimCLR(SimCLR.Params(loss=loss, lr=0.06, **params, **fixed), runtime), []
    for epoch in range(1, WARM + STEPS + 1):
        started = time.perf_counter()
        workload.train_epoch(epoch)
        spent.append(time.perf_counter() - started)
    negatives, weighed = torch.rand(2 * BATCH, 2 * BATCH - 2), []
    for _ in range(5):
        started = time.perf_counter()
        bcl_weights(negatives, alpha=0.9, beta=0.9, tau=0.1)
        weighed.append(time.perf_counter() - started)
    return {"images": BATCH, "seconds": spent, "weights": statistics.median(weighed)}


if __name__ == "__main__":
    main()
