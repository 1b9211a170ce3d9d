"""Settings of published sources, for ``--preset NAME``. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.contract import Preset

PRESETS: Mapping[str, Preset] = {
    "dpl_code": Preset(
        "the code of DPL's author, for matrix factorisation on MovieLens-100K: table 5.2, DPL",
        {
            "backbone": "mf", "loss": "dpl", "sampler": "uniform", "negatives": 10, "positives": 10, "tau": 0.07,
            "lr": 1e-3, "lr_decay": 0.5, "lr_decay_every": 100, "weight_decay": 1e-5, "batch_size": 1024, "dim": 32,
            "epochs": 200, "refit": "only",
        },
    ),
}  # fmt: skip
