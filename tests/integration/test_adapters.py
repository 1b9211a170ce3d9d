"""A Lightning module and a Trainer with the whole service: a killed and resumed sweep, registry, prediction."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Start, Store, trials, typed
from tests.support.readme_tree import ROOT

SPACE = """

def space(trial):
    return {"lr": trial.suggest_float("lr", 1e-3, 1e-1, log=True)}
"""
PREDICTOR = """

class Predictor:
    example = {"x": [[0.0] * 8, [1.0] * 8]}

    def __init__(self, weights, config):
        self.net = Classifier(width=config["width"]).net.eval()
        own = {name.removeprefix("net."): torch.from_numpy(value) for name, value in weights.items()}
        self.net.load_state_dict(own)

    def predict(self, inputs):
        import pandas as pd

        return pd.DataFrame({"largest": self.net(torch.tensor(inputs["x"].tolist())).argmax(1).tolist()})
"""
EPOCHS = 4
SLOW = "    __import__('time').sleep(0.5)\n"
"""The first line of a function that each epoch calls, so that a sweep is killed before its end."""


@pytest.mark.tools
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="make test-tools")
def test_sweep_of_a_lightning_module_resumes_and_its_winner_predicts(home: Path, start: Start, tmp_path: Path) -> None:
    plain = ROOT / "examples" / "functions" / "digits.py"
    refused = typed(home, "run", f"{plain}:Classifier", "--register", "mine", "--local")
    assert "it has no class Predictor" in refused.stderr
    text = plain.read_text().replace("def loader(seed):\n", f"def loader(seed):\n{SLOW}") + PREDICTOR
    rows = {"x": [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
    answer = swept(home, start, tmp_path / "digits.py", text, "Classifier", "acc", rows)
    assert answer == {"largest": 2}


@pytest.mark.tools
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="make test-tools")
def test_sweep_of_a_trainer_resumes_and_its_winner_predicts(home: Path, start: Start, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "functions" / "reviews.py").read_text()
    text = text.replace("def accuracy(result):\n", f"def accuracy(result):\n{SLOW}")
    answer = swept(home, start, tmp_path / "reviews.py", text, "trainer", "accuracy", {"words": [1, 2, 5, 3]})
    assert 0 < answer["score"] < 1


def swept(home: Path, start: Start, file: Path, text: str, name: str, metric: str, rows: dict[str, Any]) -> Any:
    """Sweep a file's workload, kill the driver, resume, and predict with the registered winner."""
    assert SLOW in text
    file.write_text(text + SPACE)
    words = ["sweep", f"{file}:{name}", f"epochs={EPOCHS}", f"objective={metric}:max", "--scheduler", "none", "--local"]
    first = start(*words, "--trials", "2", "--seeds", "2", "--register", "mine")
    store = Store(home)
    first.until(lambda: first.completed() and store.steps())
    first.kill()
    assert first.completed() < 4
    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    store.check()
    children = [steps for key, steps in store.steps().items() if "/" in key]
    assert children == [list(range(1, EPOCHS + 1))] * 4, "each seed run must have every epoch once"
    assert [row["trial"] for row in trials(home)] == [0, 1]
    input_file = file.with_suffix(".jsonl")
    input_file.write_text(json.dumps(rows))
    answer = typed(home, "predict", "mine/1", "--input", str(input_file))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])
