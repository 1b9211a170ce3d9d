"""The served model: the same ranking as the evaluation, errors for invalid input, and allowed imports only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from workloads.contract import Runtime
from workloads.recommender import predictor
from workloads.recommender.params import Params
from workloads.recommender.predictor import Names, NumpyRanker, Predictor, TorchRanker
from workloads.recommender.workload import Recommender

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=3, epochs=2)


@pytest.fixture(scope="module", params=["mf", "lightgcn", "item_knn", "ease", "ials"])
def trained(request: pytest.FixtureRequest) -> Recommender:
    own = {"lr": 0.01} if request.param in ("mf", "lightgcn") else {}
    workload = Recommender(Params(backbone=request.param, **own), RUNTIME)
    workload.train_epoch(1)
    return workload


def served(workload: Recommender) -> Predictor:
    servable = workload.servable()
    weights = {name: tensor.detach().numpy() for name, tensor in servable.weights.items()}
    return Predictor(weights, dict(servable.config))


def small() -> Predictor:
    """Users 0 to 2, user 2 without history; items 0 to 4, of which 3 is the most popular, then 0 and 1."""
    weights = {
        "users": np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32),
        "items": np.array([[1, 5], [2, 4], [2, 3], [4, 2], [5, 1]], np.float32),
        "seen_indptr": np.array([0, 2, 3, 3]),
        "seen_items": np.array([3, 4, 0], np.int32),
        "popularity": np.array([2, 2, 0, 5, 1]),
    }
    return Predictor(weights, {"dataset": "small"})


@pytest.mark.parametrize("ranker", ["numpy", "torch"])
def test_served_lists_and_scores_match_the_evaluation(trained: Recommender, ranker: str) -> None:
    """NDCG@20 computed from the served rows equals that of ``evaluate``; scores agree to 1e-5."""
    model = served(trained)
    if ranker == "torch":
        if not isinstance(model.ranker, NumpyRanker):
            pytest.skip("neighbours are ranked by NumPy")
        model.ranker = TorchRanker(model.ranker.items, "cpu")
    found = trained.evaluate("test")
    answer = model.predict(pd.DataFrame({"user": found.units["id"]}), k=20)
    assert not answer["fallback"].any()
    assert (answer.groupby("user", sort=False)["rank"].max() == 20).all()

    data = trained.data
    scores = trained.scorer(data.seen).scores(0, data.n_users).detach().numpy()
    np.testing.assert_allclose(answer["score"], scores[answer["user"], answer["item"]], atol=1e-5)
    wanted = set(zip(data.test.users.tolist(), data.test.items.tolist()))
    hits = np.array([pair in wanted for pair in zip(answer["user"], answer["item"])])
    gains = np.where(hits, 1 / np.log2(answer["rank"] + 1), 0).reshape(-1, 20).sum(1)
    sizes = np.minimum(data.test.counts[found.units["id"]], 20)
    ideal = np.cumsum(1 / np.log2(np.arange(2, 22)))[sizes - 1]
    same = np.isclose(gains / ideal, found.units["ndcg_at_20"], atol=1e-6)
    assert same.mean() > 0.99, "near-equal scores change places for few users only"


def test_predicted_lists_exclude_seen_items_and_break_ties_by_item() -> None:
    answer = small().predict(pd.DataFrame({"user": [1, 0, 1]}), k=2)
    assert answer["user"].tolist() == [1, 1, 0, 0, 1, 1]
    assert answer["rank"].tolist() == [1, 2] * 3
    assert answer["item"].tolist() == [1, 2, 1, 2, 1, 2]  # user 0 has seen 3 and 4; 1 and 2 are tied
    assert answer["score"].tolist() == [4, 3, 2, 2, 4, 3]
    assert list(answer.columns) == ["user", "rank", "item", "score", "fallback"]


# Histories


def small_by_history(weights: dict[str, np.ndarray[Any, Any]], **config: Any) -> Predictor:
    """Three users, five items; user 2 has no history."""
    seen = {"seen_indptr": np.array([0, 2, 3, 3]), "seen_items": np.array([3, 4, 0], np.int32)}
    return Predictor({**seen, "popularity": np.array([2, 2, 0, 5, 1]), **weights}, {"dataset": "small", **config})


MATRIX = np.arange(25, dtype=np.float32).reshape(5, 5) % 7
NEIGHBOURS = {
    "similar_indptr": np.arange(0, 26, 5), "similar_items": np.tile(np.arange(5), 5), "similarities": MATRIX.ravel(),
}  # fmt: skip


@pytest.mark.parametrize("weights", [{"item_weights": MATRIX}, NEIGHBOURS], ids=["ease", "item_knn"])
def test_history_is_scored_by_the_sum_of_the_weight_rows_of_its_items(weights: Any) -> None:
    model = small_by_history(weights)
    answer = model.predict(pd.DataFrame({"history": [[0, 2], [2, 0, 2], []]}), k=2)
    sums = MATRIX[0] + MATRIX[2]
    sums[[0, 2]] = -np.inf
    best = np.argsort(-sums, kind="stable")[:2]
    assert answer["item"].tolist() == [*best, *best, 3, 0]
    assert answer["score"].tolist()[:4] == [*sums[best], *sums[best]]
    assert answer["user"].tolist() == [0, 0, 1, 1, 2, 2]
    assert answer["fallback"].tolist() == [False] * 4 + [True] * 2
    known = model.predict(pd.DataFrame({"user": [0]}), k=2)
    same = model.predict(pd.DataFrame({"user": [7], "history": [[4, 3]]}), k=2)
    pd.testing.assert_frame_equal(same.drop(columns="user"), known.drop(columns="user"))
    assert same["user"].tolist() == [7, 7]


@pytest.mark.parametrize(
    "weights",
    [
        {"users": np.ones((3, 1), np.float32), "items": np.array([[2], [2], [0], [5], [1]], np.float32)},
        {"item_weights": np.where(np.arange(5) == 2, 0, MATRIX.T).T.astype(np.float32)},
    ],
    ids=["popularity", "ease"],
)
def test_history_of_untrained_items_gets_the_most_popular_items(weights: Any) -> None:
    """Item 2 has no training interaction."""
    if "item_weights" in weights:
        weights = {"item_weights": weights["item_weights"].copy()}
        weights["item_weights"][2] = 0
    answer = small_by_history(weights).predict(pd.DataFrame({"history": [[2], [0], []]}), k=2)
    assert answer["fallback"].tolist() == [True, True, False, False, True, True]
    assert answer["item"].tolist()[:2] == answer["item"].tolist()[4:] == [3, 0]
    assert (answer["score"] > 0).all()


def test_user_who_has_seen_all_neighbours_gets_other_items_and_no_fallback() -> None:
    """The other items have scores of 0; a fallback to popularity could recommend items that the user has."""
    weights = np.zeros((5, 5), np.float32)
    weights[3, 4] = weights[4, 3] = 1
    model = small_by_history({"item_weights": weights})
    for given in ({"user": [0]}, {"history": [[3, 4]]}):
        for k in (2, 3):
            answer = model.predict(pd.DataFrame(given), k=k)
            assert not set(answer["item"]) & {3, 4}
            assert not answer["fallback"].any()


def test_user_id_of_more_than_64_bits_is_refused() -> None:
    model = small_by_history({"item_weights": MATRIX})
    with pytest.raises(ValueError, match="user ids have at most 64 bits, got 9223372036854775808 in row 1"):
        model.predict(pd.DataFrame({"user": [0, 2**63]}, dtype=object))
    assert len(model.predict(pd.DataFrame({"user": np.array([0], np.float32)}), k=2)) == 2


@pytest.mark.parametrize(("config", "alpha", "ridge"), [({}, 10, None), ({"alpha": 4, "ridge": 2.5}, 4, 2.5)])
def test_history_is_folded_in_by_least_squares(config: dict[str, float], alpha: float, ridge: float | None) -> None:
    """x minimises Σ c (p - x·h)² + λ|x|² over all items, with c = 1 + α and p = 1 for items of the history."""
    items = np.array([[1, 5], [2, 4], [2, 3], [4, 2], [5, 1]], np.float32)
    model = small_by_history({"users": np.eye(3, 2, dtype=np.float32), "items": items}, fold_in=config)
    lam = 3 * np.diag(items.T @ items).mean() if ridge is None else ridge
    answer = model.predict(pd.DataFrame({"history": [[1], [0, 4]]}), k=5, exclude_seen=False)
    for row, history in enumerate(([1], [0, 4])):
        has = np.isin(np.arange(5), history)
        c = np.diag(1.0 + alpha * has)
        x = np.linalg.solve(items.T @ c @ items + lam * np.eye(2), items.T @ c @ has)
        rows = answer[answer["user"] == row].sort_values("item")
        np.testing.assert_allclose(rows["score"], items @ x, rtol=1e-4)


def test_history_of_source_ids_is_answered_with_source_ids() -> None:
    names = np.char.encode(np.array(["a", "b", "c", "d", "ë"]), "utf-8").view("u1").reshape(5, -1)
    model = small_by_history({"item_weights": np.roll(np.eye(5, dtype=np.float32), 1, 1), "item_ids": names})
    answer = model.predict(pd.DataFrame({"history": [["ë"], ["b"]]}), k=1)
    assert answer["item"].tolist() == ["a", "c"]
    with pytest.raises(ValueError, match="trained on small, does not know item 'z' of the history in row 1"):
        model.predict(pd.DataFrame({"history": [["a"], ["b", "z"]]}))


@pytest.mark.parametrize("nothing", [None, np.nan])
def test_missing_value_among_text_ids_is_refused(nothing: Any) -> None:
    named = Names(np.char.encode(np.array(["None", "nan"])).view("u1").reshape(2, -1))
    for values in (["nan", nothing], [nothing]):
        with pytest.raises(ValueError, match=f"user ids are texts, got nothing in row {len(values) - 1} of the input"):
            named.column(pd.DataFrame({"user": pd.Series(values, dtype=object)}))


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([[0], [5]], "does not know item 5 of the history in row 1 of the input; leave it out"),
        ([[0], [-1]], "does not know item -1 of the history in row 1"),
        ([[0], 3], "a history is a list of item ids, got 3 in row 1"),
        (["ab"], "a history is a list of item ids, got 'ab' in row 0"),
        ([[0], {0, 1}], r"a history is a list of item ids, got \{0, 1\} in row 1"),
        ([{0: 1}], r"a history is a list of item ids, got \{0: 1\} in row 0"),
        ([[[0], [1]]], r"a history is a list of item ids, got \[\[0\], \[1\]\] in row 0"),
        ([[0], [1.5]], "item ids are integers, got 1.5 in row 1"),
        ([[0], [None]], "item ids are integers, got None in row 1"),
    ],
)
def test_invalid_history_is_refused(history: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().predict(pd.DataFrame({"history": history}))


HISTORIES = {"user": ["user"], "history": ["user", "history"]}


def test_folded_in_histories_reach_nine_tenths_of_the_hits_of_trained_users(trained: Recommender) -> None:
    """Hits on test of folded-in histories are compared with those of the same users by their ids."""
    model, data = served(trained), trained.data
    users = np.flatnonzero(data.test.counts)
    bounds = [slice(*data.seen.indptr[user : user + 2]) for user in users]
    histories = pd.DataFrame({"user": users, "history": [data.seen.items[own].tolist() for own in bounds]})
    answers = {name: model.predict(histories[columns]) for name, columns in HISTORIES.items()}
    wanted = set(zip(data.test.users.tolist(), data.test.items.tolist()))
    hits = {name: sum(pair in wanted for pair in zip(rows["user"], rows["item"])) for name, rows in answers.items()}
    assert hits["history"] > 0.9 * hits["user"]


def test_predict_accepts_the_servable_example_of_histories(trained: Recommender) -> None:
    servable = trained.servable()
    assert len(served(trained).predict(pd.DataFrame(dict(servable.alternatives)))) == 3 * 20


def test_seen_items_are_listed_with_exclude_seen_false() -> None:
    answer = small().predict(pd.DataFrame({"user": [0]}), k=2, exclude_seen=False)
    assert answer["item"].tolist() == [4, 3]


def test_list_is_shorter_than_k_when_candidates_run_out() -> None:
    answer = small().predict(pd.DataFrame({"user": [0, 1, 7]}), k=50)
    assert answer.groupby("user", sort=False).size().to_dict() == {0: 3, 1: 4, 7: 5}
    assert np.isfinite(answer["score"]).all()


def test_unknown_users_get_the_popular_items() -> None:
    answer = small().predict(pd.DataFrame({"user": [2, 0, -1, 99]}), k=3)
    for user in (2, -1, 99):
        rows = answer[answer["user"] == user]
        assert rows["item"].tolist() == [3, 0, 1]
        assert rows["score"].tolist() == pytest.approx([0.5, 0.2, 0.2])
        assert rows["fallback"].all()
    assert not answer[answer["user"] == 0]["fallback"].any()


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        ({"user": [0, 9]}, {"unknown": "error"}, "trained on small, does not know user 9;"),
        ({"user": range(3, 11)}, {"unknown": "error"}, "does not know users 3, 4, 5, 6, 7 and 3 more;"),
        (
            {"users": [0]},
            {},
            r"needs a column 'user' with user ids, or 'history' with lists of item ids, got \['users'\]",
        ),
        ({"user": [0.0, np.nan]}, {}, "user ids are integers, got .*nan.* in row 1"),
        ({"user": [1.5]}, {}, "user ids are integers, got .*1.5.* in row 0"),
        ({"user": ["7"]}, {}, "user ids are integers, got '7' in row 0"),
        ({"user": [None]}, {}, "user ids are integers, got None in row 0"),
        ({"user": [0]}, {"k": 0}, "k must be at least 1, got 0"),
        ({"user": [0]}, {"unknown": "skip"}, "unknown must be one of popular, error, got 'skip'"),
    ],
)
def test_invalid_input_of_predict_is_refused(inputs: dict[str, Any], params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().predict(pd.DataFrame(inputs), **params)


def test_whole_float_ids_are_accepted_and_empty_input_returns_no_rows() -> None:
    assert small().predict(pd.DataFrame({"user": [1.0]}), k=1)["user"].tolist() == [1]
    empty = small().predict(pd.DataFrame({"user": []}))
    assert len(empty) == 0
    assert list(empty.columns) == ["user", "rank", "item", "score", "fallback"]


def test_predictions_do_not_depend_on_the_block_size(trained: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    users = pd.DataFrame({"user": [5, 1, 5, 700, 3, 2]})
    whole = served(trained).predict(users, k=7)
    monkeypatch.setattr(predictor, "_SCORES", 800)
    pd.testing.assert_frame_equal(served(trained).predict(users, k=7), whole, rtol=1e-6)


def test_predict_accepts_the_servable_example_and_parameters(trained: Recommender) -> None:
    servable = trained.servable()
    answer = served(trained).predict(pd.DataFrame(dict(servable.example)), **servable.params)
    assert len(answer) == 3 * 20


def test_predictor_file_runs_without_our_packages_and_pytorch(tmp_path: Path) -> None:
    """The file runs in a subprocess in which these packages cannot be imported."""
    source = Path(predictor.__file__).read_text()
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.split(".")[0] for name in imported} <= {"__future__", "typing", "numpy", "pandas", "torch"}
    (tmp_path / "predictor.py").write_text(source)
    command = """
import sys
sys.modules.update(torch=None, workloads=None, orchestrator=None)
import numpy as np, pandas as pd
from predictor import Predictor
one = np.ones((2, 3), np.float32)
weights = dict(users=one, items=one, seen_indptr=np.array([0, 1, 2]), seen_items=np.array([0, 1]), popularity=one[:, 0])
print(Predictor(weights, {"dataset": "x"}).predict(pd.DataFrame({"user": [0, 1]}), k=1)["item"].tolist())
"""
    found = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[1, 0]"


@pytest.mark.parametrize(
    ("ids", "column"),
    [(["ann", "bob", "zoë"], str), ([30, 10, 20], int)],
    ids=["text", "integers"],
)
def test_predict_accepts_and_returns_source_ids(ids: list[Any], column: type) -> None:
    text = column is str
    named = np.array(ids)
    packed = np.char.encode(named, "utf-8") if text else named
    weights = {
        "users": np.eye(3, dtype=np.float32),
        "items": np.eye(3, dtype=np.float32)[::-1].copy(),
        "seen_indptr": np.array([0, 1, 2, 3]),
        "seen_items": np.array([0, 1, 2], np.int32),
        "popularity": np.array([3, 2, 1]),
        "user_ids": packed.view("u1").reshape(3, -1) if text else packed,
        "item_ids": packed.view("u1").reshape(3, -1) if text else packed,
    }
    model = predictor.Predictor(weights, {"dataset": "own"})
    stranger = "eve" if text else 99
    found = model.predict(pd.DataFrame({"user": [ids[2], stranger]}), k=1, exclude_seen=False)
    assert found["user"].tolist() == [ids[2], stranger]
    assert found["item"].tolist() == [ids[0], ids[0]]
    assert found["fallback"].tolist() == [False, True]
    with pytest.raises(ValueError, match=str(stranger)):
        model.predict(pd.DataFrame({"user": [stranger]}), unknown="error")
