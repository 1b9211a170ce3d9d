"""Pieces of the curve over documents embedded again, against slow references."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("encoder_change")


def test_measures_are_those_of_each_querys_list(benchmark: Any) -> None:
    random = np.random.default_rng(0)
    scores = np.round(random.standard_normal((8, 150)), 1)  # with ties
    relevant = random.random((8, 150)) < 0.04
    relevant[:, 149] = True
    cell = benchmark.measures(scores, relevant)
    for query in range(8):
        top = np.argpartition(-scores[query], 99)[:100]  # which of the tied ones at the end is a matter of the sort
        listed = sorted(top.tolist(), key=lambda doc: (-scores[query, doc], doc))
        hits = [bool(relevant[query, doc]) for doc in listed]
        assert cell["recall_at_100"][query] == sum(hits) / relevant[query].sum()
        assert cell["mrr_at_10"][query] == (1 / (1 + hits[:10].index(True)) if any(hits[:10]) else 0)


@pytest.mark.parametrize("alignment", ["embedding", "ranking"])
def test_an_encoder_that_agrees_with_the_old_rows_has_the_loss_of_a_plain_one(benchmark: Any, alignment: str) -> None:
    torch.manual_seed(0)
    query, fresh = torch.randn(5, 3), torch.randn(5, 3)
    same = torch.zeros(5, 5, dtype=torch.bool)
    same[1, 3] = same[3, 1] = True
    plain = benchmark.contrast(query, fresh, same, None, "")
    slow = [
        -float(torch.log_softmax((query @ fresh.T)[row][~same[row]], 0)[row - int(same[row, :row].sum())])
        for row in range(5)
    ]
    np.testing.assert_allclose(plain, slow, rtol=1e-5)
    torch.testing.assert_close(benchmark.contrast(query, fresh, same, fresh, alignment), plain)
    assert (benchmark.contrast(query, fresh, same, fresh.flip(0), alignment) != plain).all()


def test_a_part_of_a_document_and_the_rest_are_the_document(benchmark: Any) -> None:
    words = np.zeros((3, benchmark.WORDS), np.int64)
    for row, length in enumerate((1, 7, benchmark.WORDS)):
        words[row, :length] = np.arange(1, length + 1)
    spans, rests = benchmark.split(words, np.random.default_rng(0))
    for row, length in ((1, 7), (2, benchmark.WORDS)):
        parts = sorted([*spans[row][spans[row] > 0], *rests[row][rests[row] > 0]])
        assert parts == list(range(1, length + 1))
        assert 0 < (spans[row] > 0).sum() <= benchmark.SPAN


def test_the_old_encoder_sees_no_document_and_no_query_of_the_topics_held_out(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = np.arange(20, dtype=np.int16) % 5
    texts = np.ones((20, benchmark.WORDS), np.int64)
    every = np.arange(20)
    data = benchmark.Collection(texts, texts, np.eye(20, dtype=np.bool_), topic, topic, every, every, every)
    seen: list[tuple[str, set[int], set[int]]] = []

    def trained(_: object, docs: np.ndarray, queries: np.ndarray, *rest: Any) -> torch.nn.Module:
        kind = rest[3] if len(rest) > 3 else ""
        seen.append((kind, set(topic[docs].tolist()), set(topic[queries].tolist())))
        return torch.nn.Linear(1, 1)

    monkeypatch.setattr(benchmark, "collection", lambda _: data)
    monkeypatch.setattr(benchmark, "stored", lambda _, seed, kind, steps: tmp_path / f"{kind}.npz")
    monkeypatch.setattr(benchmark, "trained", trained)
    monkeypatch.setattr(benchmark, "encoded", lambda *_: (np.zeros((20, 2), np.float32), np.zeros((20, 2), np.float32)))
    for kind in ("ranking", "new"):
        benchmark.vectors("scifact", 1, kind, 1)
    others = set(range(5)) - set(benchmark.held_out(1))
    assert seen == [("", others, others), ("ranking", set(range(5)), set(range(5))), ("", set(range(5)), set(range(5)))]
    assert sorted(one for seed in range(5) for one in benchmark.held_out(seed)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
