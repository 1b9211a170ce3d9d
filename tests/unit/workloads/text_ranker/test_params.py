"""The text ranker's parameters, search spaces, and published plots and table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from pydantic import ValidationError

from orchestrator.search.spaces import _Fixing
from search_spaces import text_ranker as spaces
from workloads.text_ranker.params import Params
from workloads.text_ranker.published import LOSS_PLOTS, LOSSES


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"sigma": 2, "loss": "margin"},
            "sigma=2.0 has no effect with loss=margin. Drop sigma, or set loss=ranknet or",
        ),
        ({"ties": "all", "loss": "listwise"}, "ties=all has no effect with loss=listwise"),
        ({"temperature": 0.1}, "temperature=0.1 has no effect with scoring=cross. Drop temperature, or set scoring=bi"),
        ({"loss": "margin", "margin": 3, "learnable": True}, "margin=3 with learnable=true starts outside of"),
        (
            {"passages": 3},
            "passages=3 has no effect with long_documents=cut. Drop passages",
        ),
        (
            {"long_documents": "best_passage", "passage_words": 10, "passage_stride": 11},
            "passage_stride=11 leaves out words between passages of passage_words=10. Set it to at most 10",
        ),
        ({"first_stage": "run.trec"}, "a path of a run must be absolute. Use /.*run.trec"),
        ({"bm25_weight": 1.5}, r"bm25_weight=1.5 is not in \[0, 1\]"),
        ({"max_length": 513}, "max_length is more than the encoder takes: got 513; expected at most 512 tokens"),
        ({"encoder": "minilmm"}, "Did you mean 'minilm'"),
        ({"dataset": "ml-100k"}, "dataset 'ml-100k' holds another kind of data: got interactions; expected retrieval"),
    ],
)
def test_contradictory_or_invalid_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**params)


def test_default_parameters_follow_from_loss_and_scoring() -> None:
    found = Params(loss="margin", scoring="bi")
    assert (found.margin, found.sigma, found.ties, found.pooling, found.temperature) == (1.0, None, None, "mean", 0.05)
    assert Params(**json.loads(Params().model_dump_json())) == Params()


@pytest.mark.parametrize(
    "preset", ["space", "ranknet", "adaptive_ranknet", "margin", "adaptive_margin", "listwise", "lambdarank"]
)
def test_search_spaces_draw_valid_parameters(preset: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [Params(**getattr(spaces, preset)(study.ask())) for _ in range(20)]
    assert len({one.loss for one in drawn}) == (6 if preset == "space" else 1)


@pytest.mark.parametrize("preset", ["space", "ranknet", "adaptive_ranknet", "margin", "adaptive_margin", "lambdarank"])
def test_a_learned_margin_or_sigma_starts_within_its_bounds(preset: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    fixed = {"learnable": True}
    for _ in range(20):
        drawn = Params(**{**getattr(spaces, preset)(_Fixing(study.ask(), fixed)), **fixed})
        assert drawn.learnable


def test_missing_first_stage_file_is_refused_before_a_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"first_stage=.*none\.trec is not a file on this machine"):
        Params(first_stage=str(tmp_path / "none.trec")).check_data(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [("q1 Q0 d1 1 x", "line 1: the line is not that of a run"), ("none Q0 d1 1 2.5 tag", "names a text that is not")],
)
def test_damaged_first_stage_run_is_refused_before_a_start(tmp_path: Path, line: str, message: str) -> None:
    run = tmp_path / "run.trec"
    run.write_text(line + "\n")
    params = Params(dataset="synthetic-retrieval", first_stage=str(run))
    with pytest.raises(ValueError, match=message):
        params.check_data(tmp_path)


def test_loss_plots_have_the_values_of_the_ranknet_formulas() -> None:
    """A larger σ raises the loss of a wrong order and lowers that of a right one (E-R2); S = 0 has its minimum at 0."""
    drawn = LOSS_PLOTS.compute(quick=True)
    curves = {(curve.panel, curve.name): curve for curve in drawn.curves}
    one, five = (curves["RankNet, S = 1", f"σ = {sigma}"].y for sigma in (1, 5))
    assert one[0] == pytest.approx(np.log1p(np.exp(5)))
    assert (five[0] > one[0], five[-1] < one[-1]) == (True, True)
    equal = curves["RankNet, σ = 1", "S = 0"]
    assert equal.x[int(np.argmin(equal.y))] == 0
    gradient = curves["RankNet's gradient, S = 1", "σ = 5"].y
    assert gradient[0] == pytest.approx(-5, abs=1e-6)
    assert [row["σ"] for row in drawn.tables["sigma"]] == [1, 0.5, 2, 5]


@pytest.mark.parametrize("dataset", ["scifact", "cran"])
def test_every_row_of_the_loss_table_has_valid_parameters(dataset: str) -> None:
    rows = LOSSES.rows(dataset)
    assert len(rows) == len(LOSSES.methods)
    assert {Params(**row.settings.params).dataset for row in rows} == {dataset}
