"""The hardware of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.provenance import machine


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("flags\t\t: fpu avx2 avx512f", False),
        ("flags\t\t: fpu avx512_bf16", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd", False),
        ("Features\t: fp asimd bf16", True),
        ("", True),
    ],
)
def test_instructions_for_bf16_are_read_from_the_kernel(
    line: str, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
    assert machine.has_bf16_instructions() == has
