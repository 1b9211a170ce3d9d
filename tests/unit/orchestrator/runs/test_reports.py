"""Errors of remote processes are reported with type, message and place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ray.exceptions import RayTaskError

from orchestrator.errors import RunFailed, UserError
from orchestrator.runs import reports
from orchestrator.storage.records import RunFolder

TRACE = """Traceback (most recent call last):
  File "/far/away/model.py", line 7, in forward
RuntimeError: no such layer
"""


def raised_there(error: Exception) -> RayTaskError:
    """The error as ``ray.get`` raises it, which is also an instance of the cause's class."""
    return RayTaskError("task", TRACE, error, "ray::task", 1, "127.0.0.1").as_instanceof_cause()


def test_remote_error_is_reported_with_file_and_line(tmp_path: Path) -> None:
    told = reports.failed_there(RunFolder(tmp_path / "toy-1", {}), raised_there(RuntimeError("no such layer")))
    assert isinstance(told, RunFailed)
    assert "RuntimeError: no such layer (model.py:7)" in str(told)


def test_place_of_a_library_error_is_the_call_in_user_code() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.nn.functional.pad(torch.zeros(1), [1, 1], mode="circular")  # raised in a file of PyTorch or in its core
    with pytest.raises(json.JSONDecodeError) as python:
        json.loads("{")
    for error in (caught.value, python.value):
        assert "(test_reports.py:" in reports.describe(error)
    inside = f'{TRACE}  File "{torch.__file__}", line 9, in call\n'
    assert reports.describe(RuntimeError("no such layer"), inside).endswith("(model.py:7)")


class Broken(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise ValueError(f"row {index} has no label")


def test_data_loader_worker_error_is_reported_with_message_and_place() -> None:
    with pytest.raises(ValueError, match="Caught ValueError") as caught:
        next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
    line = Broken.__getitem__.__code__.co_firstlineno + 1
    assert reports.describe(caught.value).endswith(f". ValueError: row 0 has no label (test_reports.py:{line})")


def test_remote_user_error_is_returned_unchanged(tmp_path: Path) -> None:
    error = UserError("The data is not there", fix="Fetch it")
    assert reports.failed_there(RunFolder(tmp_path / "toy-1", {}), raised_there(error)) is error
