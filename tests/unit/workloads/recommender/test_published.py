"""The thesis' tables and figures on recommendation: values, settings of rows, and computed measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestrator.reproduce import table_runs
from orchestrator.reproduce.table_runs import ReproductionBudget, Runner
from orchestrator.search import spaces
from orchestrator.storage.settings import resolve
from workloads.data import load_interactions
from workloads.published import Computation, Figure, Row, Table, Trained
from workloads.recommender.credence import GaussianFactors, credence, prior_log_odds
from workloads.recommender.params import Params
from workloads.recommender.published import measures, scores, theory, trust
from workloads.recommender.published.figures import FIGURES
from workloads.recommender.published.methods import AS_CODED, EPOCHS, THESIS
from workloads.recommender.published.tables import TABLES

ML_100K = {
    ("thesis-4.2", "RNS"): 0.3962, ("thesis-4.2", "DNS"): 0.4069, ("thesis-4.2", "BNS"): 0.4176,
    ("thesis-5.2", "InfoNCE"): 0.4118, ("thesis-5.2", "DCL"): 0.4207, ("thesis-5.2", "HCL"): 0.4242,
    ("thesis-5.2", "DPL"): 0.4338, ("thesis-6.3", "BCL"): 0.4357,
}  # fmt: skip


def rows() -> Iterator[tuple[Table, Row]]:
    """All rows of all tables, including our own."""
    for known in TABLES.values():
        for dataset in known.datasets:
            for backbone in ("mf", "lightgcn"):
                yield from ((known, row) for row in known.rows(dataset, backbone))


def row(table: str, dataset: str, backbone: str, method: str) -> Row:
    return next(one for one in TABLES[table].rows(dataset, backbone) if one.method == method)


# -- published values and settings ---------------------------------------------------------------------------


def test_every_table_row_has_valid_parameters() -> None:
    for known, one in rows():
        params = Params(**one.settings.params)
        assert {"dataset": params.dataset, "backbone": params.backbone} == one.where, known.id
        assert set(one.settings.searched) <= set(one.settings.params)


def test_every_point_of_every_figure_has_valid_parameters() -> None:
    for figure in (one for one in FIGURES.values() if isinstance(one, Figure)):
        for panel in figure.panels:
            for line in panel.lines:
                for point in line.points:
                    params = {"dataset": "ml-100k", **line.where, **line.method.params, **figure.common}
                    Params(**{**params, **point.params})
                    Params(**{**params, **point.params, **figure.blind})


@pytest.mark.slow
def test_searched_parameters_of_each_row_are_in_the_search_space() -> None:
    space = spaces.load("recommender", table_runs.space(THESIS))
    kinds = {}
    for _, one in rows():  # rows that differ only in numbers have the same space
        words = {name: value if isinstance(value, str) else None for name, value in one.settings.params.items()}
        kinds[repr((words, one.settings.searched))] = one
    for one in kinds.values():
        params = Params(**one.settings.params).model_dump(mode="json")
        fixed = {name: value for name, value in params.items() if name not in one.settings.searched}
        survey = spaces.probe(space, fixed, Params, seed=0)
        assert set(survey.distributions) == set(one.settings.searched), one.method


@pytest.mark.parametrize("known", TABLES.values(), ids=TABLES)
def test_published_recall_rises_and_precision_falls_with_the_cutoff(known: Table) -> None:
    """A mistyped digit or column would usually break this order."""
    for one in (one for other, one in rows() if other is known and known.measure is None and one.published):
        values = one.published
        cutoffs = sorted({int(metric.rpartition("_")[2]) for metric in known.columns})
        for low, high in pairwise(cutoffs):
            assert values[f"recall_at_{low}"] < values[f"recall_at_{high}"], one
            assert values[f"precision_at_{low}"] > values[f"precision_at_{high}"], one
        for k in cutoffs:
            assert 0 < values[f"ndcg_at_{k}"] < 0.75
            assert (values[f"ndcg_at_{k}"] > 0.9 * values[f"precision_at_{k}"]) or known.why(one, f"ndcg_at_{k}")


@pytest.mark.parametrize(("known", "method"), ML_100K, ids=lambda word: word)
def test_published_ndcg_of_ml_100k_equals_the_expected_value(known: str, method: str) -> None:
    assert row(known, "ml-100k", "mf", method).published["ndcg_at_20"] == ML_100K[known, method]


@pytest.mark.parametrize("dataset", ["ml-100k", "ml-1m"])
def test_mf_baselines_of_tables_4_2_and_5_2_equal_those_of_table_5_3(dataset: str) -> None:
    """The labels of the source are scrambled (E-4.T): the third block of 4.2 and 5.2 is ML-1M with MF."""
    known = row("thesis-5.3", dataset, "mf", "BPR").published
    assert row("thesis-4.2", dataset, "mf", "RNS").published == known
    assert row("thesis-5.2", dataset, "mf", "BPR").published == known


def test_impossible_values_are_doubted_and_their_neighbours_are_not() -> None:
    known, one = TABLES["thesis-5.2"], row("thesis-5.2", "ml-1m", "lightgcn", "DPL")
    assert "E-5.T" in {doubt.tag for doubt in known.why(one, "ndcg_at_10")}
    assert "E-5.T" not in {doubt.tag for doubt in known.why(one, "ndcg_at_20")}
    assert "E-5.T" not in {doubt.tag for doubt in known.why(row("thesis-5.2", "ml-1m", "mf", "DPL"), "ndcg_at_10")}


def test_dataset_without_published_values_has_rows_of_the_methods() -> None:
    found = TABLES["thesis-4.2"].rows("lastfm", "lightgcn")
    assert [one.method for one in found] == ["RNS", "PNS", "AOBPR", "DNS", "SRNS", "BNS"]  # the SGD row is only for mf
    assert not any(one.published for one in found)
    assert {one.settings.params["dataset"] for one in found} == {"lastfm"}


def test_a_row_of_ours_is_compared_with_the_published_one_it_repeats() -> None:
    ours = row("thesis-4.2", "ml-100k", "mf", "BNS, SGD")
    assert ours.ours
    assert ours.published == row("thesis-4.2", "ml-100k", "mf", "BNS").published
    assert (ours.settings.params["lr"], ours.settings.params["weight_decay"], ours.settings.searched) == (
        0.01,
        0.01,
        (),
    )
    assert row("thesis-3.2", "ml-100k", "mf", "BPRAC, bayes").published == {}


def test_rows_with_complete_settings_are_not_searched_and_use_no_gpu() -> None:
    printed, searched = (row("thesis-4.2", "synthetic", "mf", name).settings for name in ("BNS, SGD", "RNS"))
    assert Runner(THESIS, resolve(), ReproductionBudget()).search_spec(printed) is None
    assert Runner(THESIS, resolve(), ReproductionBudget(trials=0)).search_spec(searched) is None
    runner = Runner(THESIS, resolve(), ReproductionBudget(trials=3, local=True))
    spec = runner.search_spec(searched)
    assert spec is not None
    assert (spec.search.trials, spec.plan.epochs, set(spec.fixed) & {"lr", "weight_decay"}) == (3, EPOCHS, set())
    final = runner.final_spec(printed, printed.params, 100, 4)
    assert (final.seed, final.plan.refit, final.resources.gpus_per_worker) == (4, "only", 0)


# -- measures of a trained model -----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, Any], Path]:
    """The folder, parameters and data root of an untrained model for a generated table of 12 users and 9 items."""
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    pairs = [(u, i) for u in range(12) for i in range(9) if rng.random() < 0.6]
    rated = [(u, i, int(rng.integers(1, 6))) for u, i in pairs]
    for name, part in (("train", rated[::2]), ("test", rated[1::2])):
        lines = ["user,item,rating", *(f"{u},{i},{r}" for u, i, r in part)]
        (data / f"{name}.csv").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "model"
    folder.mkdir()
    tables = {"users": torch.from_numpy(rng.normal(size=(12, 4))).float(),
              "items": torch.from_numpy(rng.normal(size=(9, 4))).float()}  # fmt: skip
    save_file(tables, folder / "weights.safetensors")
    return folder, {"dataset": str(data), "loss": "bprac", "dim": 4, "credence": "bayes"}, tmp_path


def test_credence_auc_is_computed_from_ratings_of_training_interactions(model: Any) -> None:
    folder, params, root = model
    data, weights = load_interactions(params["dataset"], root), load_file(folder / "weights.safetensors")
    assert data.train_ratings is not None
    counts = torch.bincount(torch.tensor(data.train[:, 1], dtype=torch.int64), minlength=9)
    values = [
        credence(
            (weights["users"][u] @ weights["items"][i]).reshape(1), prior_log_odds(counts)[i].reshape(1),
            GaussianFactors(4, 0.6), "bayes",
        ).item()
        for u, i in data.train.tolist()
    ]  # fmt: skip
    good, bad = ([v for v, r in zip(values, data.train_ratings) if bool(r > 1) == keep] for keep in (True, False))
    auc = np.mean([(g > b) + 0.5 * (g == b) for g in good for b in bad])
    found = trust.evaluate_credence(folder, params, root)
    assert found.auc == pytest.approx(auc, abs=1e-6)
    area = torch.trapezoid(found.true_positives, found.false_positives).item()
    assert area == pytest.approx(auc, abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_auc_of_the_prior_alone_does_not_depend_on_the_weights(noise: float, model: Any) -> None:
    folder, params, root = model
    params |= {"credence": "prior", "dataset_noise": noise}
    found = trust.evaluate_credence(folder, params, root)
    data = load_interactions(params["dataset"], root, noise=noise)
    assert data.train_ratings is not None
    popularity = np.bincount(data.train[:, 1], minlength=9)[data.train[:, 1]]
    good, bad = (popularity[(data.train_ratings > 1) == keep] for keep in (True, False))
    assert found.auc == pytest.approx(np.mean([(g > b) + 0.5 * (g == b) for g in good for b in bad]), abs=1e-6)
    weights = load_file(folder / "weights.safetensors")
    save_file({name: -3 * weight for name, weight in weights.items()}, folder / "weights.safetensors")
    assert trust.evaluate_credence(folder, params, root).auc == found.auc
    for table in ("thesis-3.2", "thesis-3.3"):
        assert row(table, "ml-100k", "mf", "BPRAC, prior alone").settings.params["credence"] == "prior"
    assert "BPRAC, prior alone" in {line.name for line in cast(Figure, FIGURES["thesis-fig3.4"]).panels[0].lines}


def test_credence_evaluation_without_ratings_is_refused(model: Any) -> None:
    folder, params, root = model
    for name in ("train", "test"):
        file = Path(params["dataset"]) / f"{name}.csv"
        lines = [line.rpartition(",")[0] for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="no ratings"):
        trust.evaluate_credence(folder, params, root)


def test_score_densities_of_true_and_false_negatives_integrate_to_one(model: Any) -> None:
    folder, params, root = model
    found = scores.model_densities(folder, params, root)
    width = (found.x[1] - found.x[0]).item()
    assert found.true.sum().item() * width == pytest.approx(1)
    assert found.false.sum().item() * width == pytest.approx(1)
    data = load_interactions(params["dataset"], root)
    assert (found.false * width * len(data.test)).round().sum() == len(data.test)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_auc_by_planted_truth_matches_reference_over_untrained_items(noise: float, tmp_path: Path) -> None:
    data = load_interactions("synthetic", tmp_path, noise=noise)
    assert data.truth is not None
    rng = np.random.default_rng(1)
    users, items = rng.normal(size=(data.n_users, 4)), rng.normal(size=(data.n_items, 4))
    save_file(
        {"users": torch.from_numpy(users).float(), "items": torch.from_numpy(items).float()},
        tmp_path / "weights.safetensors",
    )
    seen = np.zeros_like(data.truth)
    seen[data.train[:, 0], data.train[:, 1]] = True
    areas = []
    for user in range(data.n_users):
        scores_of_user = (users[user] @ items.T).astype(np.float32)
        liked = scores_of_user[data.truth[user] & ~seen[user]]
        others = scores_of_user[~data.truth[user] & ~seen[user]]
        areas.append((liked[:, None] > others).mean())
    run = Trained(tmp_path, tmp_path, {"dataset": "synthetic", "dataset_noise": noise}, 1, 0, {}, tmp_path)
    found = measures.by_planted_truth(run)
    assert found["truth_auc"] == pytest.approx(np.mean(areas), abs=1e-5)
    assert 0 < found["truth_ndcg_at_20"] < 1
    known = TABLES["thesis-4.2"]
    assert known.columns_on("synthetic") == (*known.columns, *found)
    assert known.columns_on("ml-100k") == known.columns


@pytest.mark.parametrize("number", ["2.3", "3.2", "3.3", "4.3", "6.4"])
def test_densities_of_theory_figures_integrate_to_one(number: str) -> None:
    """For figure 6.4 this is Lemma 6.1."""
    figure = FIGURES[f"thesis-fig{number}"]
    assert isinstance(figure, Computation)
    for curve in figure.compute(False).curves:
        assert min(curve.y) >= 0
        assert np.trapezoid(curve.y, curve.x) == pytest.approx(1, abs=0.01), curve.name


def test_curves_of_theory_figures_match_expected_values() -> None:
    """Order statistics are checked by their means, figure 6.1 by the law of total probability."""
    second = theory.order_statistic(False).curves[1]
    # The mean of the second smallest of five standard normals is -.4950.
    assert np.trapezoid(np.multiply(second.x, second.y), second.x) == pytest.approx(1 - 0.4950 * math.sqrt(5), abs=0.01)
    larger = theory.class_densities(False).curves[1]
    mean = np.trapezoid(np.multiply(larger.x, larger.y), larger.x)
    assert mean == pytest.approx(1 / math.sqrt(math.pi), abs=0.01)  # of the larger of two standard normals
    for share, curve in zip(theory.SHARES, theory.density_ratio(False).curves[::2]):
        ratio = np.array(curve.y)
        assert curve.x == pytest.approx(ratio / (1 - share + share * ratio))  # p+ / p_d, (6.6)
    beyond = theory.density_ratio(False).curves[1::2]
    assert max(max(curve.y) for curve in beyond) < 0
    mixed = theory.mixtures(False).curves
    blind, perfect = mixed[:2], mixed[-2:]
    assert blind[0].y == pytest.approx(blind[1].y)
    assert np.trapezoid(np.multiply(perfect[1].x, perfect[1].y), perfect[1].x) == pytest.approx(mean, abs=0.01)


def test_preset_dpl_code_equals_the_row_of_the_table() -> None:
    preset, row = Params.presets["dpl_code"].settings, AS_CODED["DPL, author's code"]
    assert preset == {**row.params, "backbone": "mf", "epochs": row.epochs, "refit": "only"}


def test_every_searched_row_has_the_same_number_of_epochs() -> None:
    searched = [(table.id, name) for table in TABLES.values() for name, row in table.methods.items() if row.searched]
    assert {TABLES[table].methods[name].epochs for table, name in searched} == {EPOCHS}
    lines = [line for figure in FIGURES.values() for panel in getattr(figure, "panels", ()) for line in panel.lines]
    assert {line.method.epochs for line in lines if line.method.searched} == {EPOCHS}
