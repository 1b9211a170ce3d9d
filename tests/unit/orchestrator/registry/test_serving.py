"""Exported models in a folder: source files of predictors, weights, and models of earlier versions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from orchestrator.engine.latency import milliseconds
from orchestrator.errors import FAILED
from orchestrator.registry.serving import predictor
from orchestrator.runs.worker import export
from tests.support.readme_tree import ROOT
from tests.support.refusals import refused
from workloads.bi_encoder.params import Params
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime, Servable
from workloads.predictor_sources import predictor_sources

SENTENCES = pd.DataFrame({"sentence": ["c1w0 the1 c2w1", "", "c3w0 " * 20, "c1w0 the1 c2w1"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=1)
    folder = tmp_path_factory.mktemp("exported") / "model"
    export(BiEncoder(Params(batch_size=160, max_length=12), runtime).servable(), folder)
    return folder


def test_predictor_is_exported_with_the_files_it_imports(folder: Path) -> None:
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*.*")}
    assert files == {
        "predictor.py", "encoders/served_text.py", "encoders/search.py", "encoders/approximate.py",
        "encoders/inverted_lists.py", "encoders/lloyd.py", "abstention/decision.py",
        "abstention/guarantees.py", "abstention/scores.py", "weights.safetensors", "config.json", "servable.json",
    }  # fmt: skip


def test_model_of_an_earlier_version_with_one_file_predicts_the_same(folder: Path, tmp_path: Path) -> None:
    """A model that was registered with version 0.0 contains the predictor of that version."""
    before = tmp_path / "model"
    shutil.copytree(folder, before, ignore=shutil.ignore_patterns("encoders"))
    shutil.copyfile(ROOT / "tests" / "recorded" / "predictors" / "bi_encoder.py", before / "predictor.py")
    old, new = (predictor(path).predict(SENTENCES, unit_length=True) for path in (before, folder))
    assert old["truncated"].tolist() == new["truncated"].tolist() == [False, False, True, False]
    for one, other in zip(old["vector"], new["vector"]):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-6)


def test_two_models_of_one_process_each_have_their_own_code(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    shutil.copytree(folder, other)
    served = other / "encoders" / "served_text.py"
    served.write_text(served.read_text().replace("len(one.ids) <= special", "True"))
    first, second, again = (predictor(path).predict(SENTENCES)["vector"][0] for path in (folder, other, folder))
    assert not second.any()
    assert (first == again).all()
    assert first.any()


@pytest.mark.parametrize(
    "line",
    [
        "from . import near",
        "from ...far.away import x",
        "from ..near import x",
        "from .near.by import x",
        "from ..package.near import x",
    ],
)
def test_unsupported_relative_import_of_a_predictor_raises_value_error(line: str, tmp_path: Path) -> None:
    file = tmp_path / "package" / "predictor.py"
    file.parent.mkdir()
    file.write_text(f"import numpy\n{line}\n")
    with pytest.raises(ValueError, match=r"line 2: a relative import of a predictor is `from \.NAME import` or"):
        predictor_sources(file)


def test_sources_of_a_predictor_include_its_relative_imports(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    (mine / "serving.py").write_text("from .near import x\nfrom ..theirs.far import y\n")
    (mine / "near.py").write_text("x = 1")
    (theirs / "far.py").write_text("from .next import z\n")
    (theirs / "next.py").write_text("z = 1")
    assert predictor_sources(mine / "serving.py") == {
        "predictor.py": mine / "serving.py",
        "near.py": mine / "near.py",
        "theirs/far.py": theirs / "far.py",
        "theirs/next.py": theirs / "next.py",
    }
    (theirs / "next.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"theirs/next\.py"):
        predictor_sources(mine / "serving.py")


SUM = """import pandas as pd
class Predictor:
    def __init__(self, weights, config):
        self.weights = weights
    def predict(self, inputs):
        return pd.DataFrame({name: inputs["x"] + value.sum() for name, value in self.weights.items()})
"""


def small(folder: Path, config: Mapping[str, Any], **weights: torch.Tensor) -> Servable:
    file = folder / "predictor.py"
    file.write_text(SUM)
    return Servable(file, weights, config, {"x": np.zeros(2)}, {}, ("numpy", "pandas"))


def test_weights_that_are_tied_or_bfloat16_are_served(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    served = small(
        tmp_path, {}, one=whole, tied=whole, part=whole[2:], half=torch.full((2,), 0.5, dtype=torch.bfloat16)
    )
    export(served, tmp_path / "model")
    output = predictor(tmp_path / "model").predict(pd.DataFrame({"x": [0.0]}))
    assert output.iloc[0].to_dict() == {"one": 6.0, "tied": 6.0, "part": 5.0, "half": 1.0}
    assert milliseconds(served) > 0


@pytest.mark.parametrize("value", [{1, 2}, np.float32(1)])
def test_config_that_is_not_json_is_refused_with_the_value_type(value: object, tmp_path: Path) -> None:
    served = small(tmp_path, {"a": value}, w=torch.zeros(1))
    words = ("its config, params and tags are JSON", type(value).__name__, "from servable")
    refused(lambda: export(served, tmp_path / "model"), *words, code=FAILED)
