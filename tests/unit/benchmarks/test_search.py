"""The search benchmarks compare only programs that find the same documents."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest


def test_exact_searches_that_differ_are_not_compared(tmp_path: Path) -> None:
    search = importlib.import_module("lifelong_search")
    found = np.arange(2 * search.K).reshape(2, search.K)
    for name, docs in (("ours", found), ("faiss", found[:, ::-1]), ("other", np.where(found < 50, 10**6, found))):
        np.save(tmp_path / f"{name}.npy", docs)
    assert search.agreement(tmp_path, "ours", "faiss", search.AGREE) == 1
    assert search.agreement(tmp_path, "ours", "other") < 0.8
    with pytest.raises(SystemExit, match="ours and other have only"):
        search.agreement(tmp_path, "ours", "other", search.AGREE)
