"""Parts of the encoder change benchmark, compared with slow references."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def benchmark() -> Any:
    return importlib.import_module("encoder_change")


@pytest.fixture
def encoders() -> Any:
    return importlib.import_module("changed_encoders")


def test_recall_and_mrr_match_each_querys_ranked_list(benchmark: Any) -> None:
    random = np.random.default_rng(0)
    scores = np.round(random.standard_normal((8, 150)), 1)  # with ties
    relevant = random.random((8, 150)) < 0.04
    relevant[:, 149] = True
    cell = benchmark.measures(scores, relevant)
    for query in range(8):
        top = np.argpartition(-scores[query], 99)[:100]  # ties at the end depend on the sort
        listed = sorted(top.tolist(), key=lambda doc: (-scores[query, doc], doc))
        hits = [bool(relevant[query, doc]) for doc in listed]
        assert cell["recall_at_100"][query] == sum(hits) / relevant[query].sum()
        assert cell["mrr_at_10"][query] == (1 / (1 + hits[:10].index(True)) if any(hits[:10]) else 0)


def test_word_numbers_do_not_depend_on_tokenizer_ids(encoders: Any) -> None:
    texts = [[4, 1, 1, 1], [0, 4], [3, 0, 2]]
    assert encoders.word_numbers(texts).tolist() == [2, 3, 5, 4, 1]
    other = np.array([3, 0, 4, 1, 2])
    again = encoders.word_numbers([other[text].tolist() for text in texts])
    assert again[other].tolist() == [2, 3, 5, 4, 1]


@pytest.mark.parametrize("alignment", ["embedding", "ranking"])
def test_alignment_loss_is_zero_if_the_encoder_equals_the_old_rows(encoders: Any, alignment: str) -> None:
    torch.manual_seed(0)
    query, fresh = torch.randn(5, 3), torch.randn(5, 3)
    same = torch.zeros(5, 5, dtype=torch.bool)
    same[1, 3] = same[3, 1] = True
    plain = encoders.contrast(query, fresh, same, None, "")
    slow = [
        -float(torch.log_softmax((query @ fresh.T)[row][~same[row]], 0)[row - int(same[row, :row].sum())])
        for row in range(5)
    ]
    np.testing.assert_allclose(plain, slow, rtol=1e-5)
    torch.testing.assert_close(encoders.contrast(query, fresh, same, fresh, alignment), plain)
    assert (encoders.contrast(query, fresh, same, fresh.flip(0), alignment) != plain).all()
    none, one, two = (encoders.contrast(query, fresh, same, fresh.flip(0), alignment, weight) for weight in (0, 1, 2))
    torch.testing.assert_close(two - one, one - none)


def test_span_and_rest_of_a_split_document_contain_all_its_words(encoders: Any) -> None:
    words = np.zeros((3, encoders.WORDS), np.int64)
    for row, length in enumerate((1, 7, encoders.WORDS)):
        words[row, :length] = np.arange(1, length + 1)
    spans, rests = encoders.split(words, np.random.default_rng(0))
    for row, length in ((1, 7), (2, encoders.WORDS)):
        parts = sorted([*spans[row][spans[row] > 0], *rests[row][rests[row] > 0]])
        assert parts == list(range(1, length + 1))
        assert 0 < (spans[row] > 0).sum() <= encoders.SPAN


def test_old_encoder_is_trained_without_the_held_out_topics(
    encoders: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = np.arange(20, dtype=np.int16) % 5
    texts = np.ones((20, encoders.WORDS), np.int64)
    numbers = np.arange(20)
    data = encoders.Collection(texts, texts, np.eye(20, dtype=np.bool_), topic, topic, numbers, numbers, numbers)
    seen: list[tuple[Any, ...]] = []

    def trained(_: object, docs: np.ndarray, queries: np.ndarray, *rest: Any) -> torch.nn.Module:
        kind = rest[3] if len(rest) > 3 else ""
        seen.append((kind, rest[4:5], set(topic[docs].tolist()), set(topic[queries].tolist())))
        return torch.nn.Linear(1, 1)

    monkeypatch.setattr(encoders, "collection", lambda _: data)
    monkeypatch.setattr(encoders, "stored", lambda _, seed, kind, steps: tmp_path / f"{kind}.npz")
    monkeypatch.setattr(encoders, "trained", trained)
    monkeypatch.setattr(encoders, "encoded", lambda *_: (np.zeros((20, 2), np.float32), np.zeros((20, 2), np.float32)))
    for kind in ("ranking 3", "new"):
        encoders.vectors("scifact", 1, kind, 1)
    others = set(range(5)) - set(encoders.held_out(1))
    every = set(range(5))
    assert seen == [("", (), others, others), ("ranking", (3.0,), every, every), ("", (), every, every)]
    assert sorted(one for seed in range(5) for one in encoders.held_out(seed)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_method_is_selected_on_validation_and_evaluated_once_on_test(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row's method has the highest validation value of the row's methods; only chosen methods see test queries."""
    looks: list[tuple[str, Any, float]] = []

    class Phase:
        def __init__(self, name: str) -> None:
            self.name = name

        def measured(self, method: Any, share: float) -> dict[str, np.ndarray]:
            looks.append((self.name, method, share))
            value = (hash((method, share)) % 1000) / 1000 if self.name == "validation" else 0.5
            return {key: np.array([value, value]) for key in benchmark.MEASURES}

        def no_update(self) -> dict[str, np.ndarray]:
            return self.measured(benchmark.Method("no update", "", ""), 0.0)

    monkeypatch.setattr(benchmark, "phases", lambda *_: (Phase("validation"), Phase("test")))
    monkeypatch.setattr(benchmark, "stored", lambda *_: tmp_path / "rows.npz")
    said, cells = benchmark.measured("scifact", "minilm", 0, 100)
    assert (said, cells.keys()) == (benchmark.measured("scifact", "minilm", 0, 100)[0], cells.keys())
    values = {(benchmark.Method(*line[:3]), line[3]): line[4] for line in said["validation"]}
    rows = benchmark.rows_of("minilm")
    for row, among in rows.items():
        for share in benchmark.SHARES:
            chosen = benchmark.Method(*said["chosen"][benchmark.name_of(row, share)])
            assert chosen in among
            assert values[chosen, share] == max(values[one, share] for one in among)
    tested = [look for look in looks if look[0] == "test"]
    assert len(tested) == 1 + len(rows) * len(benchmark.SHARES) == len(cells)
    assert not any(method.reading == "none" for _, method, _ in looks), "vectors of the new encoder have another length"


def test_validation_and_test_phases_use_disjoint_queries(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past queries are the training queries for validation, and training and validation queries for the test."""
    random = np.random.default_rng(0)
    texts = np.ones((150, 3), np.int64)
    topic = np.arange(150, dtype=np.int16) % 5
    parts = np.split(np.arange(12), [6, 9])
    relevant = random.random((12, 150)) < 0.1
    encoders = importlib.import_module("changed_encoders")
    data = encoders.Collection(texts, texts[:12], relevant, topic, topic[:12], *parts)
    vectors = {kind: random.standard_normal((162, 4)) for kind in ("old", "new", "further")}
    monkeypatch.setattr(benchmark, "collection", lambda _: data)
    monkeypatch.setattr(
        benchmark, "vectors", lambda _, seed, kind, steps: np.split(vectors.get(kind, vectors["old"]), [150])
    )
    validation, test = benchmark.phases("scifact", "new", 0, 100)
    queries = vectors["old"][150:]
    np.testing.assert_array_equal(validation.past.old, queries[parts[0]])
    np.testing.assert_array_equal(test.past.old, queries[np.concatenate(parts[:2])])
    assert validation.rows.tolist() == parts[1].tolist()
    assert test.rows.tolist() == parts[2].tolist()
    np.testing.assert_array_equal(test.relevant, relevant[parts[2]])
    for method in benchmark.methods("new"):
        cell = validation.measured(method, 0.0)
        if method.reading in (*benchmark.ALIGNMENTS, "both encoders"):
            np.testing.assert_array_equal(cell["recall_at_100"], validation.no_update()["recall_at_100"])
    whole = [
        test.measured(one, 1.0)["recall_at_100"] for one in benchmark.methods("new") if one[0] in benchmark.READINGS
    ]
    expected = benchmark.measures(vectors["new"][150:][parts[2]] @ vectors["new"][:150].T, relevant[parts[2]])
    for one in whole:
        np.testing.assert_array_equal(one, expected["recall_at_100"])
