"""The quality benchmark of SimCLR: its report of differences, and the identity of stored runs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from workloads.simclr.params import Params


@pytest.fixture
def quality() -> Any:
    return importlib.import_module("simclr_quality")


def results(quality: Any, **values: list[float]) -> dict[str, Any]:
    runs = [
        {"loss": loss, "seed": seed, "test": {"knn_top1": value}, "params": quality.SETTINGS, "precision": "bf16",
         "curve": [{}] * quality.EPOCHS}
        for loss, found in values.items() for seed, value in enumerate(found)
    ]  # fmt: skip
    untrained = [{"knn_top1": value} for value in (0.29, 0.30, 0.31)]
    return {"runs": runs, "baselines": {"raw pixels": {"knn_top1": 0.38}, "untrained": untrained}}


def test_report_has_differences_to_the_baselines_with_intervals(
    quality: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    quality.report(results(quality, infonce=[0.44, 0.45, 0.46], hcl=[0.41, 0.42, 0.43], bcl=[0.40]))
    told = capsys.readouterr().out
    assert "infonce - raw pixels: +0.0700, 95% [+0.0452, +0.0948]; +0.05 asked: yes, its lower end: NO" in told
    assert "infonce - untrained: +0.1500, 95% [+0.1273, +0.1727]; +0.05 asked: yes, its lower end: yes" in told
    assert "hcl - raw pixels: +0.0400, 95% [+0.0152, +0.0648]; +0.05 asked: NO, its lower end: NO" in told
    assert "bcl - raw pixels: +0.0200, no interval (n < 2); +0.05 asked: NO" in told
    assert "infonce - hcl: +0.0300, 95% [+0.0073, +0.0527]: a difference" in told


def test_rows_have_distinct_parameters_and_are_reported(quality: Any, capsys: pytest.CaptureFixture[str]) -> None:
    params = {name: Params(**{**quality.SETTINGS, **settings}) for name, settings in quality.ROWS.items()}
    assert len(set(params.values())) == len(params)
    quality.report(results(quality, infonce=[0.44, 0.45], byol=[0.40, 0.42]))
    shown = capsys.readouterr().out
    assert "| byol | 0.4100 ± 0.0141 | 2 |" in shown
    assert "infonce - byol: +0.0350" in shown
    assert "moco" not in shown


def test_runs_with_other_settings_or_precision_are_distinct(quality: Any) -> None:
    plain = quality.Setup(quality.SETTINGS, "bf16", quality.EPOCHS)
    others = [
        quality.Setup({**quality.SETTINGS, "encoder": "resnet50"}, "bf16", quality.EPOCHS),
        quality.Setup({**quality.SETTINGS, "batch_size": 128}, "bf16", quality.EPOCHS),
        quality.Setup(quality.SETTINGS, "fp32", quality.EPOCHS),
        quality.Setup(quality.SETTINGS, "bf16", 2 * quality.EPOCHS),
    ]
    assert len({one.digest for one in (plain, *others)}) == len({one.results for one in (plain, *others)}) == 5
    assert plain.results.name == "simclr_quality.json"
    (run,) = results(quality, infonce=[0.4])["runs"]
    assert plain.made(run)
    assert not any(other.made(run) for other in others)
