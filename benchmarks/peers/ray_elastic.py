"""Two workers under Ray Train's own elastic ``num_workers=(1, 2)``, as its documentation writes them.

    python ray_elastic.py FOLDER EPOCHS EPOCH_SECONDS

Rank 0 appends to ``FOLDER/epochs.jsonl`` each epoch, its time, the number of workers and the seconds that
``get_preemption_info`` took.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
from ray.train.torch import TorchTrainer

SAVE_SECONDS = 5.0
"""As often as ours saves by default."""


def train(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed

    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    epoch = 0
    if (last := ray.train.get_checkpoint()) is not None:
        with last.as_directory() as folder:
            epoch = int((Path(folder) / "epoch").read_text())
    saved, warned = time.monotonic(), False
    while epoch < config["epochs"]:
        time.sleep(config["seconds"])
        torch.distributed.all_reduce(torch.zeros(1))  # as a step's gradients do, it needs every worker
        epoch += 1
        asked = time.perf_counter()
        leaving = ray.train.get_preemption_info() is not None
        asked = time.perf_counter() - asked
        due = time.monotonic() - saved > SAVE_SECONDS or (leaving and not warned)
        warned |= leaving
        checkpoint = None
        if rank == 0:
            with (Path(config["folder"]) / "epochs.jsonl").open("a") as file:
                line = {"epoch": epoch, "time": time.time(), "workers": workers, "asked": asked}
                file.write(json.dumps(line) + "\n")
            if due:
                saved = time.monotonic()
                folder = tempfile.mkdtemp()
                (Path(folder) / "epoch").write_text(str(epoch))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


def main(folder: str, epochs: int, seconds: float) -> None:
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder, "epochs": epochs, "seconds": seconds},
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(
            name="elastic",
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
