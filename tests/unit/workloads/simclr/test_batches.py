"""Batches of a dataset larger than memory: images by rank and virtual epoch, and the order after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.support.pictures import class_folders
from workloads.augment import Recipe
from workloads.contract import Runtime
from workloads.data.images import resident
from workloads.data.images.resident import ImagePart
from workloads.data.images.types import Images, Pixels
from workloads.simclr import batches as module
from workloads.simclr.batches import Batch, batches, buffer_size
from workloads.simclr.params import Params
from workloads.simclr.workload import SimCLR

CPU = torch.device("cpu")
RUNTIME = Runtime(device=CPU, data=Path(), seed=3, epochs=2)
RECIPE = Recipe(8, 8)


def _part(count: int) -> ImagePart:
    """A part of images whose pixels are their positions in the source. Every tenth image is not in the part."""
    images = torch.arange(count).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    rows = torch.arange(count)[torch.arange(count) % 10 != 0]
    return ImagePart(images, rows, rows % 2)


def _steps(part: ImagePart, epoch: int, buffer: int | None, **runtime: Any) -> list[Batch]:
    return list(batches(part, RECIPE, 16, replace(RUNTIME, **runtime), epoch, buffer))


def test_batches_depend_on_the_buffer_and_not_on_ranks_or_virtual_epochs() -> None:
    part = _part(1000)
    whole = _steps(part, 2, 256)
    places = torch.cat([batch.places for batch in whole])
    assert len(places) == len(places.unique()) == 896
    assert torch.equal(torch.cat([batch.images[:, 0, 0, 0] for batch in whole]), part.rows[places])
    assert [len((part.rows[window] // 8).unique()) < 30 for window in torch.split(places, 128)] == [True] * 7
    ranks = [_steps(part, 2, 256, rank=rank, world_size=2) for rank in range(2)]
    virtual = [batch for epoch in range(9, 17) for batch in _steps(part, epoch, 256, steps_per_epoch=7)]
    for number, batch in enumerate(whole):
        shares = [rank[number] for rank in ranks]
        assert torch.equal(torch.cat([share.images for share in shares]), batch.images)
        assert torch.equal(torch.cat([share.places for share in shares]), batch.places)
        assert torch.equal(virtual[number].images, batch.images)
    for other in (_steps(part, 1, 256), _steps(part, 2, 128), _steps(part, 2, None)):
        assert not torch.equal(torch.cat([batch.places for batch in other]), places)


def test_dataset_that_fits_in_memory_is_shuffled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All recorded results were trained in this order."""
    order = torch.randperm(900, generator=torch.Generator().manual_seed(module.generator(3, "order", 1).initial_seed()))
    places = torch.cat([batch.places for batch in _steps(_part(1000), 1, None)])
    assert torch.equal(places, order[:896])
    images = np.zeros((1000, 3, 8, 8), np.uint8)
    pixels = Pixels(images, np.zeros(1000, np.int64), np.arange(1000))
    data = Images(pixels, pixels, ("a", "b"))
    monkeypatch.setattr(module, "BUFFER_BYTES", 500 * 3 * 8 * 8)
    for memory, given, buffer in (
        (2000, None, None), (2000, 999, 999), (2000, 1000, None), (1999, None, 500), (1999, 64, 64), (1999, 1000, None),
    ):  # fmt: skip
        monkeypatch.setattr(resident, "process_bytes", lambda _on, half=memory: 2 * half * 3 * 8 * 8)
        assert buffer_size(given, data, CPU) == buffer


def test_shuffle_buffer_smaller_than_two_batches_is_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"shuffle_buffer=511 holds less than two batches .* Set it to 512 or more"
    ):
        Params(shuffle_buffer=511, batch_size=256)


@pytest.mark.slow
def test_resume_keeps_the_shuffle_order_on_a_machine_with_other_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is streamed from a file; the second resumes from its state where all images fit in memory."""
    class_folders(tmp_path / "pictures", {"a": 60, "b": 60})
    given = {"dataset": str(tmp_path / "pictures"), "encoder": "tiny", "projection": 8, "batch_size": 8}
    runtime = replace(RUNTIME, data=tmp_path)
    fits = SimCLR(Params(**given), runtime)
    evaluated = fits.evaluate("test").metrics
    assert "shuffle_buffer" not in fits.train_epoch(1)
    assert "shuffle_buffer" not in fits.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(resident, "process_bytes", lambda _device: 0)
        patch.setattr(module, "BUFFER_BYTES", 32 * 3 * 8 * 8)
        streamed = SimCLR(Params(**given, probe_dataset=given["dataset"]), runtime)
    assert all(part.file is not None for part in (streamed.data.train, streamed.data.test, streamed.other.train))
    assert evaluated.items() <= streamed.evaluate("test").metrics.items()
    assert streamed.train_epoch(1)["shuffle_buffer"] == 32
    resumed, explicit = (SimCLR(Params(**given, **more), runtime) for more in ({}, {"shuffle_buffer": 64}))
    for other in (resumed, explicit):
        other.load_state_dict(streamed.state_dict())
    assert (resumed.data.train.file, explicit.data.train.file is None) == (None, False)
    losses = [one.train_epoch(2)["loss"] for one in (streamed, resumed, explicit)]
    assert losses[0] == losses[1] != losses[2]
    resumed.load_state_dict(fits.state_dict())
    assert resumed.train_epoch(2) == fits.train_epoch(2)
    assert len(streamed.servable().weights) == len(fits.servable().weights)
