"""Checkpoints are read back as written, damaged ones are refused, and a killed writer leaves an intact one."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import META, TENSORS, Checkpoint
from orchestrator.errors import UserError
from tests.support import refusals
from tests.support.waiting import until

IDENTITY = {"workload": "toy", "fingerprint": "aa"}
STATE = {"weights": torch.arange(6.0).reshape(2, 3), "optimiser": {0: {"step": 3}}, "loss": 0.25}


def write(folder: Path, state: Mapping[Any, Any] = STATE, identity: Mapping[str, str] = IDENTITY) -> Path:
    return checkpoint.write(folder, Checkpoint(identity, 7, dict(state)))


def same(first: Any, second: Any) -> bool:
    """Equality of nested states; tuples have become lists."""
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and bool(first == second)


# Content


def test_state_is_read_back_as_written(tmp_path: Path) -> None:
    found = checkpoint.read(write(tmp_path / "checkpoint-1"), IDENTITY)
    assert (found.identity, found.epoch) == (IDENTITY, 7)
    assert same(STATE, found.state)


scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8)
tensors = st.sampled_from(
    [
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.rand(3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([True]),
    ]
)
keys = st.integers(0, 12) | st.sampled_from(["0", "1", "a", "a/b", "b", "", "$tensor", "$items"])
states = st.recursive(
    scalars | tensors,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(  # these settings replace those of the profile: a busy machine is not an error
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(state=st.dictionaries(keys, states, max_size=4))
def test_any_nested_state_of_tensors_and_scalars_is_read_back(state: dict[Any, Any], tmp_path: Path) -> None:
    assert same(state, checkpoint.read(write(tmp_path / "checkpoint-1", state)).state)


def test_similar_keys_are_kept_apart(tmp_path: Path) -> None:
    one, two, three, four = (torch.full((2,), float(n)) for n in range(4))
    state = {1: one, "1": two, "a/b": three, "a": {"b": four}}
    assert same(state, checkpoint.read(write(tmp_path / "checkpoint-1", state)).state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool])
def test_tensors_of_each_dtype_are_read_back_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.tensor([0.1, -3.3, 7]).to(dtype)
    assert same({"t": tensor}, checkpoint.read(write(tmp_path / "checkpoint-1", {"t": tensor})).state)


def test_shared_and_strided_tensors_are_read_back(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    one = base[:1, :1].T  # one element with a stride of 6
    state = {"tied": base, "again": base, "part": base[1:3], "turned": base.T, "wide": base[0].expand(5, 6)}
    state |= {"one": one[:, 0], "empty": base[:0], "scalar": base[0, 0].expand(1)}
    found = checkpoint.read(write(tmp_path / "checkpoint-1", state)).state
    assert same(state, found)
    found["tied"][0, 0] = -1
    assert found["again"][0, 0] == 0


def test_nan_and_infinity_in_scalars_are_read_back(tmp_path: Path) -> None:
    found = checkpoint.read(write(tmp_path / "checkpoint-1", {"x": math.nan, "y": math.inf})).state
    assert math.isnan(found["x"])
    assert found["y"] == math.inf


def test_parameters_are_saved_as_plain_tensors(tmp_path: Path) -> None:
    state = {"p": torch.nn.Parameter(torch.ones(2))}
    found = checkpoint.read(write(tmp_path / "checkpoint-1", state)).state["p"]
    assert type(found) is torch.Tensor
    assert not found.requires_grad


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), 1j, torch.Generator()])
def test_value_that_would_need_pickle_is_refused_with_its_place(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"state_dict holds a {type(value).__name__} at .*deep.*0"):
        write(tmp_path / "checkpoint-1", {"deep": [value]})
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("key", [("user", 3), b"bytes", frozenset()])
def test_a_key_that_cannot_be_read_back_is_refused_with_its_place(key: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the key .* at /deep; allowed: text and numbers") as caught:
        write(tmp_path / "checkpoint-1", {"deep": {key: torch.ones(2)}})
    assert repr(key) in str(caught.value)
    state = {"deep": {None: 1, True: 2, 2.5: 3, 7: 4, "text": 5}}
    assert same(state, checkpoint.read(write(tmp_path / "checkpoint-1", state)).state)


def test_conjugate_and_negative_views_keep_their_values(tmp_path: Path) -> None:
    state = {"conjugate": torch.tensor([1 + 2j]).conj(), "negative": torch._neg_view(torch.ones(2))}
    assert same(state, checkpoint.read(write(tmp_path / "checkpoint-1", state)).state)


def test_the_files_hold_tensors_and_json_and_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle was used")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "dumps"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    folder = write(tmp_path / "checkpoint-1")
    checkpoint.read(folder)
    assert {file.name for file in folder.iterdir()} == {TENSORS, META}
    json.loads((folder / META).read_text())
    content = (folder / TENSORS).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert max(ends) == len(content) - 8 - size, "the file must have no bytes outside its tensors"


# Damage


def refused(folder: Path, *words: str, identity: Mapping[str, str] | None = None) -> None:
    refusals.refused(lambda: checkpoint.read(folder, identity), str(folder), *words)


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_truncated_tensor_file_is_refused(left: float, tmp_path: Path) -> None:
    file = write(tmp_path / "checkpoint-1") / TENSORS
    size = file.stat().st_size
    os.truncate(file, int(size * left))
    refused(file.parent, "is truncated", f"got {int(size * left)} bytes", f"allowed: {size} bytes")


def test_missing_tensor_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    (folder / TENSORS).unlink()
    refused(folder, "is truncated", "got 0 bytes")


@pytest.mark.parametrize("place", [12, -1])
def test_flipped_bit_in_the_tensor_file_is_refused(place: int, tmp_path: Path) -> None:
    file = write(tmp_path / "checkpoint-1") / TENSORS
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    refused(file.parent, f"the content of {TENSORS} changed")


@pytest.mark.parametrize("left", [0.0, 0.3, 0.99])
def test_truncated_checkpoint_json_is_refused(left: float, tmp_path: Path) -> None:
    file = write(tmp_path / "checkpoint-1") / META
    os.truncate(file, int(file.stat().st_size * left))
    refused(file.parent, f"its {META} cannot be read")


def test_checkpoint_without_read_permission_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not advise to remove the checkpoint."""
    folder = write(tmp_path / "checkpoint-1")

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UserError, match=f"^The checkpoint {folder} cannot be read: got Permission denied. Get the"):
        checkpoint.latest(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff\xfe", b"null"])
def test_checkpoint_json_with_other_content_is_refused(content: bytes, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    (folder / META).write_bytes(content)
    refused(folder, f"its {META} cannot be read")


@pytest.mark.parametrize("key", ["identity", "epoch", "state", "files", "sha256"])
def test_checkpoint_json_with_a_missing_key_is_refused(key: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    meta = json.loads((folder / META).read_text())
    del meta[key]
    (folder / META).write_text(json.dumps(meta))
    refused(folder, f"the content of {META} changed", identity=IDENTITY)


def test_changed_digit_in_checkpoint_json_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "checkpoint-1") / META
    content = file.read_text()
    assert '"epoch": 7' in content
    file.write_text(content.replace('"epoch": 7', '"epoch": 5'))
    refused(file.parent, f"the content of {META} changed")


def test_missing_checkpoint_json_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    (folder / META).unlink()
    refused(folder, f"is incomplete: it has no {META}")
    refused(tmp_path / "nowhere", f"is incomplete: it has no {META}")


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    meta = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps(meta | {"format": 99}))
    refused(folder, "another format: got 99; allowed: 1 or 2", "Use the version that wrote it")


@pytest.mark.parametrize("key", ["workload", "fingerprint"])
def test_checkpoint_of_another_workload_or_fingerprint_is_refused(key: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoint-1")
    refused(
        folder, f"belongs to another {key}: got {IDENTITY[key]}; allowed: other", identity=IDENTITY | {key: "other"}
    )


# A folder of checkpoints


def test_latest_is_the_newest(tmp_path: Path) -> None:
    for order in (2, 10, 9):
        write(tmp_path / checkpoint.name(order))
    assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(10)


@pytest.mark.parametrize("damage", [TENSORS, META])
def test_latest_falls_back_past_a_damaged_one(damage: str, tmp_path: Path) -> None:
    for order in (1, 2):
        write(tmp_path / checkpoint.name(order))
    os.truncate(tmp_path / checkpoint.name(2) / damage, 10)
    assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(1)


def test_latest_skips_checkpoint_json_that_is_too_nested_or_a_folder(tmp_path: Path) -> None:
    for order in (1, 2, 3):
        write(tmp_path / checkpoint.name(order))
    (tmp_path / checkpoint.name(2) / META).write_text("[" * 100_000)
    (tmp_path / checkpoint.name(3) / META).unlink()
    (tmp_path / checkpoint.name(3) / META).mkdir()
    assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(1)


def test_latest_raises_user_error_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    for order in (1, 2):
        os.truncate(write(tmp_path / checkpoint.name(order)) / TENSORS, 10)
    with pytest.raises(UserError, match="checkpoint-00000002 is truncated"):
        checkpoint.latest(tmp_path)


def test_latest_of_an_empty_or_missing_folder_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for order in (1, 2, 9, 10):
        write(tmp_path / checkpoint.name(order))
    checkpoint.keep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.name(9), checkpoint.name(10)]


def test_names_sort_in_the_order_of_writing() -> None:
    names = [checkpoint.name(order) for order in (0, 9, 10, 99, 100, 1_000_000)]
    assert sorted(names) == names


# Killed writers


def test_failed_write_leaves_the_earlier_checkpoint_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "checkpoint-1")

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("orchestrator.engine.tensor_file.write", full)
    with pytest.raises(UserError, match="No space"):
        write(folder, {"weights": torch.ones(9)})
    assert same(STATE, checkpoint.read(folder).state)


def test_refused_write_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(tmp_path / "checkpoint-1", {"set": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def test_keep_removes_partial_folders_except_those_of_this_process(tmp_path: Path) -> None:
    for name in (".checkpoint-00000009.0.partial", ".selection.0.partial", f".selection.{os.getpid()}.partial"):
        (tmp_path / name).mkdir()
    checkpoint.keep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".selection.{os.getpid()}.partial"]


def kill_while_writing(write_for_ever: Callable[[Path], None], folder: Path, seconds: float) -> None:
    """Kill ``write_for_ever(folder)`` ``seconds`` after two checkpoints exist: new ones replace the old ones."""
    process = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(folder,))
    process.start()
    until(lambda: len(list(folder.glob("checkpoint-*"))) >= 2, pause=0.001)
    time.sleep(seconds)
    process.kill()
    process.join()


def _write_for_ever(folder: Path) -> None:
    for order in range(1, 1_000_000):
        write(folder / checkpoint.name(order), {"order": order, "weights": torch.full((20_000,), float(order))})
        checkpoint.keep(folder)


def test_killed_writer_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    for round_ in range(6):
        folder = tmp_path / str(round_)
        kill_while_writing(_write_for_ever, folder, 0.004 * round_)
        found = checkpoint.latest(folder)
        assert found is not None
        state = checkpoint.read(found).state
        assert state["weights"].unique().tolist() == [state["order"]]
        shutil.rmtree(folder)
