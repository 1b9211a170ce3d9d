"""Checkpoints written during training, and the file that the checkpoints of one best epoch share."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestrator.engine import checkpoint, checkpoint_writer, tensor_file
from orchestrator.engine.checkpoint import META, SELECTED, TENSORS, BestEpoch, Checkpoint
from orchestrator.engine.checkpoint_writer import CheckpointWriter
from orchestrator.errors import UNAVAILABLE, UserError
from tests.support.waiting import HANG_SECONDS
from tests.unit.orchestrator.engine.test_checkpoint import kill_while_writing

UNITS = {"id": torch.arange(2**17), "ndcg": torch.rand(2**17)}  # 1.5 MiB, above SHARED_BYTES


def state(value: float, best_epoch: BestEpoch | None = None, **entries: Any) -> Checkpoint:
    values = {"workload": {"table": torch.full((1000,), value)}, "best": None, "units": UNITS, **entries}
    return Checkpoint({"workload": "toy"}, int(value), values, best_epoch)


def table(folder: Path) -> torch.Tensor:
    tensor: torch.Tensor = checkpoint.read(folder).state["workload"]["table"]
    return tensor


# Tensor files


@pytest.mark.parametrize("name", tensor_file.DTYPES)
def test_tensor_file_is_read_by_safetensors_with_equal_values(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(6).to(dtype)
    tensors = {"matrix": tensor.view(2, 3), "scalar": tensor[1], "nothing": tensor[:0], "columns": tensor.view(2, 3).T}
    written = tensor_file.write(tmp_path / "ours", tensors)
    assert written.bytes == (tmp_path / "ours").stat().st_size
    assert written.sha256 == checkpoint._digest(tmp_path / "ours")
    found = load_file(tmp_path / "ours")
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, tmp_path / "theirs")
    for key, expected in load_file(tmp_path / "theirs").items():
        assert (found[key].dtype, found[key].shape) == (dtype, expected.shape)
        assert torch.equal(found[key].reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


def test_unsupported_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot hold the tensor z of type complex128"):
        tensor_file.write(tmp_path / "file", {"z": torch.zeros(1, dtype=torch.complex128)})


# The best epoch's file


def test_checkpoints_of_one_best_epoch_share_a_file(tmp_path: Path) -> None:
    first, second = BestEpoch(), BestEpoch()
    folders = [
        checkpoint.write(tmp_path / checkpoint.name(order), state(order, best_epoch))
        for order, best_epoch in ((1, first), (2, first), (3, second))
    ]
    inodes = [(folder / SELECTED).stat().st_ino for folder in folders]
    assert inodes[0] == inodes[1] != inodes[2]
    shutil.rmtree(folders[0])
    found = checkpoint.read(folders[1])
    assert torch.equal(found.state["units"]["ndcg"], UNITS["ndcg"])
    assert torch.equal(found.state["workload"]["table"], torch.full((1000,), 2.0))
    assert "ndcg" not in str(load_file(folders[1] / TENSORS).keys())


def test_small_best_epoch_is_stored_in_the_tensor_file(tmp_path: Path) -> None:
    folder = checkpoint.write(tmp_path / "checkpoint-1", state(1, BestEpoch(), units={"id": torch.arange(9)}))
    assert {file.name for file in folder.iterdir()} == {TENSORS, META}
    assert torch.equal(checkpoint.read(folder).state["units"]["id"], torch.arange(9))


def _no_links(*_: Any) -> None:
    raise OSError("Operation not supported")


@pytest.mark.parametrize("trouble", ["no links", "gone", "another file"])
def test_best_epoch_file_is_rewritten_if_it_cannot_be_linked(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best_epoch = BestEpoch()
    first = checkpoint.write(tmp_path / checkpoint.name(1), state(1, best_epoch))
    if trouble == "no links":
        monkeypatch.setattr(os, "link", _no_links)
    elif trouble == "gone":
        shutil.rmtree(first)
    else:
        (first / SELECTED).rename(first / "kept")  # so that its inode is not used again
        (first / SELECTED).write_bytes(b"another process' file")
    second = checkpoint.write(tmp_path / checkpoint.name(2), state(2, best_epoch))
    assert torch.equal(checkpoint.read(second).state["units"]["ndcg"], UNITS["ndcg"])


def test_flipped_bit_in_the_best_epoch_file_is_refused(tmp_path: Path) -> None:
    folder = checkpoint.write(tmp_path / "checkpoint-1", state(1, BestEpoch()))
    content = bytearray((folder / SELECTED).read_bytes())
    content[-1] ^= 1
    (folder / SELECTED).write_bytes(content)
    with pytest.raises(UserError, match=f"the content of {SELECTED} changed"):
        checkpoint.read(folder)


def test_format_1_is_read(tmp_path: Path) -> None:
    """The first version wrote one tensor file, described under another key."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    save_file({"0 /w": torch.arange(3.0)}, folder / TENSORS)
    described = {"bytes": (folder / TENSORS).stat().st_size, "sha256": checkpoint._digest(folder / TENSORS)}
    meta = {"format": 1, "identity": {}, "epoch": 4, "tensors": described}
    meta["state"] = {"$items": [["w", {"$tensor": "0 /w"}]]}
    (folder / META).write_text(json.dumps(meta | {"sha256": checkpoint._seal(meta)}))
    found = checkpoint.read(folder)
    assert found.epoch == 4
    assert torch.equal(found.state["w"], torch.arange(3.0))


def test_digest_of_an_intact_file_is_computed_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint.write(tmp_path / checkpoint.name(1), state(1))
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    monkeypatch.setattr(checkpoint, "_SETTLED_NS", -1)
    assert checkpoint.latest(tmp_path) == folder
    monkeypatch.setattr(checkpoint, "_digest", lambda file: pytest.fail("read again"))
    checkpoint.read(folder)


# In the background


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "BACKGROUND_BYTES", 1)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event; writes of checkpoints wait until it is set."""
    released = threading.Event()
    write = checkpoint.write

    def waiting(*args: Any) -> Path:
        released.wait(HANG_SECONDS)
        return write(*args)

    monkeypatch.setattr(checkpoint, "write", waiting)
    yield released
    released.set()


@pytest.mark.usefixtures("background")
def test_background_write_is_unaffected_by_later_changes_of_the_state(tmp_path: Path, held: threading.Event) -> None:
    saved = state(1)
    with CheckpointWriter(tmp_path, 2) as writer:
        writer.save(saved, 1)
        saved.state["workload"]["table"].fill_(9)  # the next epoch
        assert checkpoint.latest(tmp_path) is None
        held.set()
    assert torch.equal(table(tmp_path / checkpoint.name(1)), torch.ones(1000))


@pytest.mark.usefixtures("background")
def test_background_writes_are_sequential_and_can_be_awaited(tmp_path: Path, held: threading.Event) -> None:
    with CheckpointWriter(tmp_path, 2) as writer:
        writer.save(state(1), 1)
        threading.Timer(0.1, held.set).start()
        writer.save(state(2), 2)
        assert checkpoint.latest(tmp_path) is not None, "the second write must wait for the first"
        writer.save(state(3), 3, wait=True)
        assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.name(2), checkpoint.name(3)]


def test_small_state_is_written_synchronously(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, 2) as writer:
        writer.save(state(1), 1)
        assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(1)


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def _save(folder: Path, count: int, error: Exception | None = None) -> None:
    with CheckpointWriter(folder, 2) as writer:
        for order in range(1, count + 1):
            writer.save(state(order), order)
        if error:
            raise error


@pytest.mark.usefixtures("background")
@pytest.mark.parametrize("count", [1, 2])
def test_write_error_is_raised_by_the_next_save_or_at_the_end(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "write", _full)
    with pytest.raises(UserError, match="No space left") as caught:
        _save(tmp_path, count)
    assert caught.value.code == UNAVAILABLE
    with pytest.raises(ZeroDivisionError):  # the error that ends training comes first
        _save(tmp_path, 1, ZeroDivisionError())


def _train_for_ever(folder: Path) -> None:
    best_epoch = BestEpoch()
    with CheckpointWriter(folder, 2) as writer:
        for order in range(1, 10**6):
            best_epoch = BestEpoch() if order % 5 == 0 else best_epoch
            writer.save(state(order, best_epoch), order)


@pytest.mark.usefixtures("background")
def test_kill_during_writes_leaves_one_of_the_two_newest_checkpoints(tmp_path: Path) -> None:
    for round_ in range(5):
        folder = tmp_path / str(round_)
        kill_while_writing(_train_for_ever, folder, 0.003 * round_)
        found = checkpoint.latest(folder)
        assert found is not None
        orders = [int(path.name.strip(".").split(".")[0].split("-")[1]) for path in folder.glob("*checkpoint-*")]
        assert max(orders) - int(found.name.split("-")[1]) <= 1
        assert table(found).unique().tolist() == [checkpoint.read(found).epoch]
