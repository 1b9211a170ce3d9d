"""A dataset of two small files, in the catalogue for one test."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from workloads.data import DATASETS, Dataset, SourceFile
from workloads.data.interactions.movielens import read_ml_100k

FILES = {
    "100k_train.csv": b"user,item,rating\r\n0,1,3\r\n0,2,4\r\n1,1,5\r\n",
    "100k_test.csv": b"user,item,rating\r\n0,5,3\r\n1,6,4\r\n",
}


def register(monkeypatch: pytest.MonkeyPatch, url: str) -> Dataset:
    sources = tuple(
        SourceFile(name, len(content), hashlib.sha256(content).hexdigest(), f"{url}/{name}")
        for name, content in FILES.items()
    )
    known = Dataset("tiny", "two small files", "interactions", read_ml_100k, sources)
    monkeypatch.setitem(DATASETS, "tiny", known)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return known


def lay_out(root: Path) -> Path:
    """Write the files to a data root. Returns the root."""
    folder = root / "tiny"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return root
