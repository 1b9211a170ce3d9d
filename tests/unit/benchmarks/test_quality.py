"""Quality benchmarks: stored runs, a single seed, a failing peer, and options that are refused."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.fixture
def harness() -> Any:
    return importlib.import_module("harness")


def test_deviation_of_a_single_value_is_zero(harness: Any) -> None:
    assert (harness.deviation([0.5]), harness.mean_text([0.5], 3)) == (0.0, "0.500")
    assert harness.deviation([1.0, 3.0]) == pytest.approx(2**0.5)
    assert harness.mean_text((1.0, 3.0)) == "2.0000 ± 1.4142"


def test_failed_write_of_results_keeps_the_earlier_file(harness: Any, tmp_path: Path) -> None:
    file = tmp_path / "results" / "some.json"
    assert harness.read_results(file) == {}
    harness.write_results(file, {"a": 1})
    with pytest.raises(TypeError):
        harness.write_results(file, {"a": 1, "b": object()})
    assert harness.read_results(file) == {"a": 1}
    assert [one.name for one in file.parent.iterdir()] == ["some.json"]


@pytest.fixture
def contrast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    quality = importlib.import_module("graph_contrast_quality")
    monkeypatch.setattr(quality, "FILE", tmp_path / "graph_contrast_quality.json")
    return quality


def test_results_of_a_single_seed_are_stored_with_deviation_zero(
    contrast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["graph_contrast_quality.py", "--seeds", "1"])
    monkeypatch.setattr(contrast, "validate", lambda settings: (0.4, 5))
    monkeypatch.setattr(contrast, "run", lambda *a, **k: SimpleNamespace(metrics={"test/ndcg_at_20": 0.3}))
    contrast.main()
    stored = json.loads(contrast.FILE.read_text())
    assert {(row["mean"], row["sd"]) for row in stored.values()} == {(0.3, 0.0)}


def test_failing_peer_exits_with_its_error_message(contrast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """RecBole is not installed in this interpreter."""
    pairs = SimpleNamespace(users=torch.tensor([0]), items=torch.tensor([0]))
    data = SimpleNamespace(train=pairs, test=pairs, n_users=1, n_items=1)
    monkeypatch.setattr(contrast, "data_root", Path)
    monkeypatch.setattr(contrast, "Recommender", lambda *a: SimpleNamespace(data=data))
    with pytest.raises(SystemExit, match="No module named 'recbole'"):
        contrast.peer("SGL, edge drop, by RecBole", {}, 1, 0, Path(sys.executable), final=True)


def test_untrained_baseline_is_computed_for_all_seeds_of_later_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Baselines stored by a first call with one seed are extended, so that later calls have an interval."""
    quality = importlib.import_module("simclr_quality")
    monkeypatch.setattr(quality, "RESULTS", tmp_path)

    def train(loss: str, seed: int, setup: Any, arguments: Any) -> dict[str, Any]:
        made = {"params": setup.settings, "precision": setup.precision, "curve": [{}] * setup.epochs}
        return {"loss": loss, "seed": seed, "test": {"knn_top1": 0.4 + 0.01 * seed}, **made}

    def baselines(setup: Any, arguments: Any) -> dict[str, Any]:
        untrained = [{"knn_top1": 0.3 + 0.01 * seed} for seed in range(arguments.seeds)]
        return {"raw pixels": {"knn_top1": 0.38}, "untrained": untrained}

    monkeypatch.setattr(quality, "train", train)
    monkeypatch.setattr(quality, "baselines", baselines)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for seeds in ("1", "3", "2"):
        monkeypatch.setattr(sys, "argv", ["simclr_quality.py", "--data", ".", "--rows", "bcl", "--seeds", seeds])
        quality.main()
    stored = json.loads((tmp_path / "simclr_quality.json").read_text())
    assert (len(stored["runs"]), len(stored["baselines"]["untrained"])) == (3, 3)


def test_run_with_other_epochs_does_not_write_stored_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    abstention = importlib.import_module("abstention")
    monkeypatch.setattr(abstention, "HERE", tmp_path)
    population = SimpleNamespace(scores={}, failure={"top_1": []}, n=1)
    for name, given in (("trained", population), ("alarms", {}), ("ordered", {}), ("show", None)):
        monkeypatch.setattr(abstention, name, lambda *a, given=given: given)
    for words, stored in ((["--epochs", "1"], False), ([], True)):
        monkeypatch.setattr(sys, "argv", ["abstention.py", "--only", "scifact", *words])
        abstention.main()
        assert (tmp_path / "results" / "abstention.json").exists() == stored


def test_baselines_and_their_peers_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    baselines = importlib.import_module("baselines_quality")
    calls = []

    def measured(who: str, seconds: float) -> dict[str, float]:
        calls.append(who)
        return dict.fromkeys(baselines.METRICS, 0.5) | {"seconds": seconds}

    monkeypatch.setattr(baselines, "HERE", tmp_path)
    monkeypatch.setattr(baselines, "ROWS", {"EASE": {"backbone": "ease"}, "popularity": {"backbone": "popularity"}})
    monkeypatch.setattr(baselines, "ours", lambda seed, settings: measured(settings["backbone"], 1.0))
    monkeypatch.setattr(baselines, "peer", lambda seed, other, python: measured(other.model, 4.0))
    monkeypatch.setattr(sys, "argv", ["baselines_quality.py", "--seeds", "2", "--peers", "python"])
    baselines.main()
    assert calls == ["ease", "EASE", "ease", "EASE", "popularity"]
    stored = json.loads((tmp_path / "results" / "baselines_quality.json").read_text())
    assert stored["EASE, by RecBole"]["time_of_ours"] == 0.25
    assert "time_of_ours" not in stored["popularity"]


def test_hours_on_a_gpu_follow_from_the_measured_steps_and_match_the_stored_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_hours = importlib.import_module("gpu_hours")
    monkeypatch.setattr(gpu_hours, "step_seconds", lambda encoder: 3.6)
    model = gpu_hours.Model("cifar-10", 3, 10, {"encoder": "resnet50"})
    assert gpu_hours.hours(model) == pytest.approx((5.85, 5.85))  # 195 steps, 10 epochs, 3 seeds
    smaller = gpu_hours.Model("cifar-10", 3, 10, {"encoder": "resnet50", "batch_size": "128"})
    assert gpu_hours.hours(smaller) == pytest.approx((5.85, 11.7))
    larger = gpu_hours.Model("tiny-imagenet", 1, 1, {"encoder": "resnet50"})
    assert gpu_hours.hours(larger) == pytest.approx((1.56, 1.56))  # 390 steps, each four times as long
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["gpu_hours.py"])
    gpu_hours.main()
    stored = (gpu_hours.HERE / "results" / "gpu_hours.md").read_text()
    assert capsys.readouterr().out.splitlines()[1:] == stored.splitlines()[1:]
