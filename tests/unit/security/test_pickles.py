"""Malicious pickles in every kind of file that is read are refused or ignored, and never executed."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from optuna.distributions import FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.trial import create_trial

import orchestrator
from orchestrator.engine import checkpoint
from orchestrator.errors import UserError
from orchestrator.search.samplers import sampler
from tests.unit.security.strangers import Bomb, bomb
from workloads.data.conversion_cache import cached_arrays
from workloads.data.errors import DataError
from workloads.data.images.archives import read_cifar
from workloads.data.interactions.tables import read_tables

ROOT = Path(orchestrator.__file__).parents[1]

UNPICKLING = {
    ("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("torch", "load"), ("cloudpickle", "load"),
    ("cloudpickle", "loads"), ("joblib", "load"), ("marshal", "loads"), ("shelve", "open"), ("yaml", "load"),
    ("yaml", "unsafe_load"), ("pd", "read_pickle"), ("pandas", "read_pickle"), ("dill", "loads"),
}  # fmt: skip
EXCEPTED = {("workloads/data/images/archives.py", "Unpickler")}
"""CIFAR is shipped as pickles: its reader allows arrays, text and numbers, and is tested below."""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def test_malicious_pickle_runs_code_when_unpickled(canary: Path) -> None:
    pickle.loads(bomb(canary))
    assert canary.exists()


@pytest.mark.slow
def test_product_code_unpickles_only_in_the_cifar_reader() -> None:
    found = set()
    for package in ("orchestrator", "workloads", "search_spaces"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    if (node.value.id, node.attr) in UNPICKLING:
                        found.add((file.relative_to(ROOT).as_posix(), node.attr))
                elif (
                    isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
                ):
                    found.add((file.relative_to(ROOT).as_posix(), node.func.id))
                elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
                    assert ast.unparse(node.value) == "False", f"{file}: {node.arg}"
    assert found == EXCEPTED


def test_pickle_in_a_checkpoint_with_valid_digests_is_refused(tmp_path: Path, canary: Path) -> None:
    folder = checkpoint.write(tmp_path / "checkpoint-00000001", checkpoint.Checkpoint({}, 1, {"x": torch.zeros(1)}))
    torch.save(Bomb(canary), folder / checkpoint.TENSORS)
    content = (folder / checkpoint.TENSORS).read_bytes()
    meta = json.loads((folder / checkpoint.META).read_text())
    del meta["sha256"]
    meta["files"][checkpoint.TENSORS] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    seal = hashlib.sha256(json.dumps(meta).encode()).hexdigest()
    (folder / checkpoint.META).write_text(json.dumps(meta | {"sha256": seal}))
    with pytest.raises(UserError, match="damaged"):
        checkpoint.read(folder)
    assert not canary.exists()


@pytest.mark.parametrize("ours", [True, False])
def test_cma_es_state_that_is_a_pickle_is_not_executed_by_our_sampler(ours: bool, canary: Path) -> None:
    """The state is executed by Optuna's own sampler, which shows that the attack works."""
    study = optuna.create_study(sampler=sampler("cmaes", 0) if ours else CmaEsSampler(seed=0))
    unit = {name: FloatDistribution(0, 1) for name in ("x", "y")}
    state = {"cma:optimizer:0": bomb(canary).hex(), "cma:generation": 0}
    for _ in range(3):
        study.add_trial(create_trial(params={"x": 0.5, "y": 0.5}, distributions=unit, value=1.0, system_attrs=state))
    trial = study.ask()
    assert 0 <= trial.suggest_float("x", 0, 1) <= 1
    assert canary.exists() is not ours


@pytest.mark.parametrize("inside", [False, True])
def test_pickled_dataset_that_names_other_classes_is_refused(inside: bool, tmp_path: Path, canary: Path) -> None:
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [0]}
    content = pickle.dumps(batch | {"extra": Bomb(canary)}) if inside else bomb(canary)
    meta = pickle.dumps({"label_names": ["cat"]})
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for name, data in (("train", content), ("test", pickle.dumps(batch)), ("meta", meta)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match=r"damaged or another one \(it names pathlib"):
        read_cifar(tmp_path, "cifar.tar.gz", train=("train",), test="test", meta="meta", label="label")
    assert not canary.exists()


def test_pickled_extension_type_of_a_table_is_not_executed(tmp_path: Path, canary: Path) -> None:
    """Arrow before 14.0.1 unpickled the type of a column (CVE-2023-47248)."""
    named = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": bomb(canary)}
    schema = pa.schema([pa.field(name, pa.int64(), metadata=named) for name in ("user", "item")])
    for part in ("train", "test"):
        ids = [0, 1] if part == "train" else [1, 0]
        pq.write_table(pa.table([pa.array([0, 1]), pa.array(ids)], schema=schema), tmp_path / f"{part}.parquet")
    assert read_tables(tmp_path, ("train.parquet", "test.parquet")).n_users == 2
    assert not canary.exists()


def _object_array(path: Path, canary: Path) -> None:
    array = np.empty(1, object)
    array[0] = Bomb(canary)
    np.savez(path, order=array, sizes=array)


def test_cached_object_arrays_are_recomputed_and_not_unpickled(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    made = cached_arrays("arrays", "identity", lambda: {"order": np.arange(3)})
    (file,) = (tmp_path / "arrays").glob("*.npz")
    _object_array(file, canary)
    again = cached_arrays("arrays", "identity", lambda: {"order": np.arange(3)})
    assert again["order"].tolist() == made["order"].tolist() == [0, 1, 2]
    assert not canary.exists()
