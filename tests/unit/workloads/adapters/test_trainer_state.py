"""The state of a Trainer in fp16 includes the loss scale. The test does not need accelerate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from workloads.adapters.hugging_face import _restore, _state


def trainer(scaler: torch.amp.GradScaler | None) -> Any:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    accelerator, state = SimpleNamespace(scaler=scaler), SimpleNamespace(epoch=1)
    return SimpleNamespace(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, accelerator=accelerator, state=state
    )


def test_fp16_loss_scale_of_a_trainer_is_restored() -> None:
    saved = _state(trainer(torch.amp.GradScaler("cpu", init_scale=8.0)))
    resumed = torch.amp.GradScaler("cpu")
    _restore(trainer(resumed), saved)
    assert resumed.get_scale() == 8.0
    plain = _state(trainer(None))
    assert "scaler" not in plain
    _restore(trainer(None), plain)
