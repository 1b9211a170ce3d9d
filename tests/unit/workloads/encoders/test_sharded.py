"""Exact search on two ranks returns the lists of one process, including ties; the ranks share the products."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workloads.contract import Runtime
from workloads.encoders import search, sharded
from workloads.encoders.search import exact_topk
from workloads.encoders.sharded import sharded_encode, sharded_topk
from workloads.encoders.text import TextEncoder, encode, load_encoder
from workloads.encoders.tokens import Tokens
from workloads.testing_distributed import WORLD, run_on_ranks

TEXTS = ["a plane takes off", "", "off", "an air plane", "take the plane", "a a a", "plane"]

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=0, epochs=1)
CASES = [(5000, 7, True), (5000, 100, False), (1500, 1, True), (20, 50, True), (3, 50, False), (0, 5, False)]
"""Rows, k, and whether many scores are equal."""


def data(rows: int, tied: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(rows)
    index, queries = (torch.randn(count, 8, generator=generator) for count in (rows, 30))
    if tied:
        index, queries = index.sign(), queries.sign()
    return queries, list(index.split(700))


def searched(rank: int) -> list[tuple[Any, Any, int]]:
    """For each case: scores, rows, and the number of rows that this rank multiplied."""
    found = []
    sizes: list[int] = []
    multiply = torch.mm

    def counted(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        sizes.append(right.shape[1])
        return multiply(left, right, out=out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_SCORES", {"cpu": 1})  # 1,024 rows at once
        patch.setattr(torch, "mm", counted)
        for rows, k, tied in CASES:
            before = sum(sizes)
            scores, best = sharded_topk(*data(rows, tied), k, replace(RUNTIME, rank=rank, world_size=WORLD))
            found.append((scores.numpy(), best.numpy(), sum(sizes) - before))
    return found


def test_sharded_search_on_two_ranks_equals_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = run_on_ranks(searched)
    monkeypatch.setattr(search, "_SCORES", {"cpu": 1})
    for (rows, k, tied), first, second in zip(CASES, *ranks, strict=True):
        queries, blocks = data(rows, tied)
        scores, best = exact_topk(queries, blocks, k)
        for found_scores, found_rows, _ in (first, second):
            assert torch.equal(torch.from_numpy(found_scores), scores)
            assert torch.equal(torch.from_numpy(found_rows), best)
        assert first[2] + second[2] == rows
    assert [multiplied for _, _, multiplied in ranks[1]] == [2048, 2048, 476, 0, 0, 0]


def encoded(rank: int) -> tuple[Any, int]:
    """Vectors of all texts, and the number of texts that this rank encoded."""
    counts = []

    def counted(encoder: TextEncoder, tokens: Tokens) -> torch.Tensor:
        counts.append(len(tokens))
        return encode(encoder, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "encode", counted)
        tokenizer, encoder = load_encoder("tiny", max_length=16, texts=TEXTS)
        vectors = sharded_encode(encoder, tokenizer(TEXTS), replace(RUNTIME, rank=rank, world_size=WORLD))
    return vectors.numpy(), sum(counts)


def encoded_by_the_first(rank: int) -> Any:
    tokenizer, encoder = load_encoder("tiny", max_length=16, texts=TEXTS)
    return None if rank else sharded_encode(encoder, tokenizer(TEXTS), RUNTIME).numpy()


def test_one_rank_encodes_without_the_other_rank() -> None:
    """An export encodes on one rank only; the other rank does not take part."""
    tokenizer, encoder = load_encoder("tiny", max_length=16, texts=TEXTS)
    vectors, _ = run_on_ranks(encoded_by_the_first)
    np.testing.assert_allclose(vectors, encode(encoder, tokenizer(TEXTS)).numpy(), atol=1e-6)


def test_two_ranks_encode_half_of_the_texts_each() -> None:
    tokenizer, encoder = load_encoder("tiny", max_length=16, texts=TEXTS)
    expected = encode(encoder, tokenizer(TEXTS)).numpy()
    ranks = run_on_ranks(encoded)
    assert [count for _, count in ranks] == [4, 3]
    for vectors, _ in ranks:
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
