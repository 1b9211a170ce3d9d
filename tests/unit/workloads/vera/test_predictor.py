"""VERA's search spaces, published tables and served predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest

from orchestrator.search.spaces import suggest
from search_spaces import vera as spaces
from tests.support.small_vera import BASELINE, build
from workloads.vera.confidence import confidence
from workloads.vera.inference import rank
from workloads.vera.params import Params
from workloads.vera.predictor import Predictor
from workloads.vera.published import ABLATION, MAIN, RELIABILITY
from workloads.vera.workload import Vera


def test_search_spaces_and_published_rows_have_valid_parameters() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for preset in (spaces.space, spaces.evidential, spaces.softmax):
        for _ in range(10):
            Params(**preset(study.ask()))
    for table in (MAIN, ABLATION):
        for name in table.datasets:
            for row in table.rows(name):
                assert Params(**{**row.settings.params, "encoder": "tiny"}).dataset == name


def test_search_with_calibration_on_validation_draws_no_calibration_share() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = suggest(spaces.space, study.ask(), {"calibration_part": "validation"})
    assert Params(**found).calibration_share is None
    assert Params(**suggest(spaces.space, study.ask(), {})).calibration_share is not None


def test_reliability_figure_uses_the_settings_of_the_main_table() -> None:
    for dataset in MAIN.datasets:
        rows = {row.method: row.settings for row in MAIN.rows(dataset)}
        for line in RELIABILITY.panels[0].lines:
            params = {**line.method.params, **RELIABILITY.common, **RELIABILITY.on[dataset], "dataset": dataset}
            assert params == rows[line.name].params
            assert RELIABILITY.line_on(dataset, line).method.epochs == rows[line.name].epochs


@pytest.mark.parametrize(
    "params",
    [
        {}, {"evidence_context": False, "recalibration": "platt"},
        {"graph_layers": 2, "evidence_map": "softplus"},
        {"encoder_lr": 1e-3}, {"pooling": "max"},
        {"method": "edl", "recalibration": "isotonic", **BASELINE},
        {"method": "softmax", "recalibration": "temperature", **BASELINE},
        {"method": "softmax", "confidence": "mc_dropout", "dropout": 0.5, "recalibration": "platt", **BASELINE},
        {"method": "softmax", "confidence": "mc_dropout", "dropout": 0.5, "recalibration": "temperature", **BASELINE},
        {"dataset": "synthetic-retrieval", "recalibration": "temperature", "batch_size": 8},
    ],
)  # fmt: skip
def test_served_scores_and_confidences_equal_those_of_the_trained_model(params: dict[str, Any]) -> None:
    vera = build(eval_k=2, **params)
    for epoch in range(1, 5):
        vera.train_epoch(epoch)
    served = vera.servable()
    predictor = Predictor(
        {name: side.numpy() for name, side in served.weights.items()}, json.loads(json.dumps(served.config))
    )
    data, queries = vera.data, vera.data.parts.test[:5]
    found = predictor.predict(inputs_of(vera, queries))
    read = rank(vera.model, data, queries, vera.params, vera.runtime)
    np.testing.assert_allclose(found["score"], read.scores[read.listed], rtol=2e-3, atol=2e-3)
    c = confidence(read, 2, vera.params, vera.choice.map_k).repeat_interleave(read.listed.sum(1))
    np.testing.assert_allclose(found["confidence"], c, atol=2e-3)
    assert found["abstain"].tolist() == (found["confidence"] < vera.choice.threshold).tolist()
    assert found.groupby("query")["rank"].min().eq(1).all()
    if vera.params.confidence == "evidence":
        np.testing.assert_allclose(found["kappa"], sum(read.evidence)[read.listed], rtol=5e-3)
    assert len(predictor.predict(pd.DataFrame(dict(served.example)))) == len(served.example["query"])


def inputs_of(vera: Vera, queries: Any) -> pd.DataFrame:
    pool, frames = vera.data.pool, []
    names = np.array(pool.categories, object)
    for number, query in enumerate(queries):
        rows = np.arange(*pool.indptr[pool.list_of[query] : pool.list_of[query] + 2])
        columns: dict[str, Any] = {"query": f"{pool.queries[query]}{' ' * number}"}  # makes equal texts distinct
        columns["candidate"] = [pool.texts[text] for text in pool.text[rows]]
        columns |= {name: names[pool.codes[rows, place]] for place, name in enumerate(pool.code_names)}
        columns |= {name: pool.numbers[rows, place] for place, name in enumerate(pool.number_names)}
        if pool.ends is not None:
            ends = {name: pool.ends[rows, place].tolist() for place, name in enumerate(("subject", "object"))}
            columns |= {name: [pool.entities[entity] for entity in side] for name, side in ends.items()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def test_invalid_prediction_inputs_are_refused() -> None:
    vera = build()
    served = vera.servable()
    predictor = Predictor({name: side.numpy() for name, side in served.weights.items()}, dict(served.config))
    frame = pd.DataFrame(dict(served.example))
    with pytest.raises(ValueError, match=r"of which \['relation'\] are missing"):
        predictor.predict(frame.drop(columns="relation"))
    with pytest.raises(ValueError, match="column 'query' holds texts, got nothing in row 0"):
        predictor.predict(frame.assign(query=None))
    with pytest.raises(ValueError, match="column 'subject_degree' holds numbers, got 'much' in row 0"):
        predictor.predict(frame.assign(subject_degree="much"))
    assert len(predictor.predict(frame.head(0))) == 0
    assert predictor.predict(frame.assign(relation="never seen"))["confidence"].between(0, 1).all()


def test_evaluated_on_differs_on_validation_if_calibrated_by_validation() -> None:
    from orchestrator.report.samples import evaluated_on  # imported here since a GPU machine may lack its dependencies

    plain, kept, flattered = (
        Params(**given).model_dump(mode="json")
        for given in ({"method": "softmax"}, {}, {"calibration_part": "validation"})
    )
    assert evaluated_on(plain) == evaluated_on(kept) != evaluated_on(flattered)
    assert evaluated_on(plain, "test") == evaluated_on(flattered, "test")


def test_category_name_in_two_columns_has_separate_numbers(tmp_path: Path) -> None:
    graph, rows = [], []
    for number in range(40):
        first, second = (f"a{number}", "child", f"b{number}"), (f"b{number}", "random", f"c{number}")
        graph += [first, second, (f"a{number}", "friend", f"d{number}")]
        part = ("train", "train", "train", "dev", "test")[number % 5]
        rows.append({"id": f"q{number}", "kb": "g", "hops": 2, "question": f"what of a{number}", "split": part,
                     "topic_entity": f"a{number}", "path": [first, second]})  # fmt: skip
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "g.tsv").write_text("\n".join(map("\t".join, graph)))
    vera = build(dataset=str(tmp_path), eval_candidates=8, batch_size=8)
    steps, relations, _ = vera.servable().config["category_numbers"]
    assert steps["random"] != relations["random"]
    for number, name in enumerate(vera.data.pool.categories[1:], 1):
        assert all(column.get(name, number) == number for column in (steps, relations)) or name == "random"
