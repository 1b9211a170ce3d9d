"""Encoders of the benchmark of a changed encoder, and the collections that they embed.

Those that are trained here are averages of word vectors with a layer, which train in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import data_root
from numpy.typing import NDArray
from torch import nn

from workloads.data.cache import cache_dir, replacing
from workloads.data.retrieval.bm25 import Tokenised
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import split_queries
from workloads.encoders.pooling import normalised
from workloads.encoders.text import encode, load_encoder
from workloads.lifelong.sessions import Stream, query_topics, topics_of
from workloads.losses.alignment import embedding_alignment_loss, rank_loss, ranking_alignment_loss

FILES = {"scifact": "scifact/queries.jsonl", "classic-ir": "classic-ir/cran/queries.jsonl"}
VERSION = 2
"""Of what is stored in the cache."""

DIM, BATCH, STEPS, LR, TEMPERATURE = 64, 96, 100, 5e-3, 0.05
VOCABULARY, WORDS, SPAN = 10_000, 80, 12
"""The most frequent words; words of a text that are read, and of the part of a document that serves as a query."""

MINILM, MINILM_TOKENS = "minilm", 128
Vectors = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Unit vectors of documents (N, d) and queries (Q, d)."""


@dataclass(frozen=True, eq=False)
class Collection:
    """Texts as word numbers from 1, (n, WORDS), padded with 0: ``docs`` and ``queries``; judgements, topics, parts."""

    docs: NDArray[np.int64]
    queries: NDArray[np.int64]
    relevant: NDArray[np.bool_]
    topic: NDArray[np.int16]
    query_topic: NDArray[np.int16]
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


@cache
def collection(dataset: str) -> Collection:
    data = load_retrieval(dataset, data_root(FILES[dataset]), "skip")
    docs = data.docs.to_pylist()
    words = Tokenised(docs)
    texts = [words.terms(side) for side in (docs, data.queries.to_pylist())]
    topic = topics_of(data, Stream())
    parts = split_queries(data, seed=0)
    relevant = np.zeros((len(texts[1]), len(docs)), np.bool_)
    judged = data.judgements[data.judgements[:, 2] > 0]
    relevant[judged[:, 0], judged[:, 1]] = True
    query_topic = query_topics(data, topic)
    number = word_numbers(texts[0])
    sides = [padded([number[np.array(text, np.int64)] for text in side]) for side in texts]
    return Collection(*sides, relevant, topic, query_topic, parts.train, parts.validation, parts.test)


def word_numbers(texts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The number of each word: 1 for the one in most documents; 0 beyond :data:`VOCABULARY`.

    Ties by first occurrence: the tokenizer numbers words differently in each process.
    """
    frequency = np.bincount(np.concatenate([np.unique(np.array(text, np.int64)) for text in texts]))
    words, first = np.unique(np.concatenate([np.array(text, np.int64) for text in texts]), return_index=True)
    kept = words[np.lexsort((first, -frequency[words]))][:VOCABULARY]
    number = np.zeros(len(frequency), np.int64)
    number[kept] = np.arange(1, len(kept) + 1)
    return number


def padded(texts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    rows = np.zeros((len(texts), WORDS), np.int64)
    for row, words in enumerate(texts):
        read_words = words[words > 0][:WORDS]
        rows[row, : len(read_words)] = read_words
    return rows


class WordEncoder(nn.Module):
    """Weighted mean of word vectors, and a layer with a shortcut; unit vectors (n, DIM) of word numbers (n, w)."""

    def __init__(self, size: int, known: NDArray[np.bool_], weight: torch.Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding(size, DIM)
        nn.init.normal_(self.words.weight, std=DIM**-0.5)
        self.weight = nn.Parameter(weight)
        self.layer = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.register_buffer("known", torch.from_numpy(known))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        weights = self.weight[words].exp() * self.known[words]
        mean = torch.einsum("qw,qwd->qd", weights, self.words(words)) / weights.sum(1, keepdim=True).clamp_min(1e-6)
        return nn.functional.normalize(mean + self.layer(mean), dim=1)


def trained(
    data: Collection, docs: NDArray[np.int64], queries: NDArray[np.int64], seed: int, steps: int,
    old: torch.Tensor | None = None, alignment: str = "", weight: float = 1.0,
    start: Mapping[str, torch.Tensor] | None = None,
) -> WordEncoder:  # fmt: skip
    """An encoder trained on documents, a part of which finds the rest, and on labelled queries, in equal numbers.

    It goes on from the weights ``start``. With an ``alignment`` it learns to read the vectors ``old`` of all documents:
    L_rank and ``weight`` times an L_align.
    """
    random = np.random.default_rng([seed, 7])
    torch.manual_seed(seed)
    size = int(data.docs.max()) + 1
    counts = np.bincount(np.concatenate([np.unique(row) for row in data.docs[docs]]), minlength=size)
    known = counts > 1  # of its own documents
    known[0] = False
    rarity = torch.from_numpy(np.log(np.log((1 + len(docs)) / (1 + counts)) + 1e-3)).float()
    model = WordEncoder(size, known, rarity)
    if start is not None:
        model.load_state_dict({**start, "known": model.known})
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    positives = [np.intersect1d(np.flatnonzero(data.relevant[query]), docs) for query in queries.tolist()]
    labelled = np.flatnonzero([len(found) > 0 for found in positives])
    for step in range(steps):
        own = random.choice(docs, BATCH // 2, replace=False)
        drawn = random.choice(labelled, min(len(labelled), BATCH // 2), replace=False)
        spans, rests = split(data.docs[own], random)
        asked = np.concatenate([spans, data.queries[queries[drawn]]])
        answers = np.array([random.choice(positives[row]) for row in drawn.tolist()], np.int64)
        chosen = np.concatenate([own, answers])
        query = model(torch.from_numpy(asked)) / TEMPERATURE
        fresh = model(torch.from_numpy(np.concatenate([rests, data.docs[answers]])))
        # A document that another query of the batch also has is not its negative.
        same = torch.from_numpy((chosen[:, None] == chosen[None, :]) & ~np.eye(len(chosen), dtype=np.bool_))
        loss = contrast(
            query, fresh, same, None if old is None else old[torch.from_numpy(chosen)], alignment, weight
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / 20) * (1 - step / steps)
        optimizer.step()
    return model.eval()


def contrast(
    query: torch.Tensor, fresh: torch.Tensor, same: torch.Tensor, stored: torch.Tensor | None, alignment: str,
    weight: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """Each query's loss in the batch, (n,)."""
    count = len(query)
    if stored is None:
        scores = (query @ fresh.T).masked_fill(same, -torch.inf)
        return nn.functional.cross_entropy(scores, torch.arange(count), reduction="none")
    # The positive first, as the losses of L2R have it.
    order = (torch.arange(count)[:, None] + torch.arange(count)[None, :]) % count
    there = ~same.gather(1, order)
    stored_block, fresh_block = stored[order], fresh[order]
    loss = rank_loss(query, stored_block, fresh_block[:, :0], there)
    if alignment == "embedding":
        return loss + weight * embedding_alignment_loss(stored_block, fresh_block, there) / there.sum(1)
    return loss + weight * ranking_alignment_loss(query, stored_block, fresh_block, there)


def split(rows: NDArray[np.int64], random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random part of each text, of at most SPAN words, and the rest of it."""
    spans = np.zeros((len(rows), WORDS), np.int64)
    rests = rows.copy()
    for row, words in enumerate(rows):
        length = int((words > 0).sum())
        size = min(SPAN, max(1, length // 3))
        first = int(random.integers(max(1, length - size + 1)))
        spans[row, :size] = words[first : first + size]
        if length > size:
            rests[row, first : first + size] = 0
    return spans, rests


def held_out(seed: int) -> tuple[int, int]:
    """The two topics that the old encoder of a seed has not seen."""
    return seed % 5, (seed + 2) % 5


@torch.no_grad()
def encoded(model: WordEncoder, data: Collection) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    sides = (data.docs, data.queries)
    docs, queries = (
        np.concatenate([model(torch.from_numpy(part)).numpy() for part in np.array_split(side, 1 + len(side) // 512)])
        for side in sides
    )
    return docs, queries


def kind_of(alignment: str, weight: float) -> str:
    """The name of L2R's encoder with an alignment of this weight."""
    return f"{alignment} {weight:g}"


def vectors(dataset: str, seed: int, kind: str, steps: int) -> Vectors:
    """Vectors of documents and queries by an encoder, stored in the cache.

    ``kind``: old, new, further (the old one, trained further), of :func:`kind_of`, or minilm, which is as published.
    """
    file = stored(dataset, 0, kind, 0) if kind == MINILM else stored(dataset, seed, kind, steps)
    if file.exists():
        with np.load(file) as arrays:
            return arrays["docs"], arrays["queries"]
    state: dict[str, NDArray[Any]] = {}
    if kind == MINILM:
        docs, queries = pretrained(dataset)
    else:
        data = collection(dataset)
        model = encoder_of(data, dataset, seed, kind, steps)
        docs, queries = encoded(model, data)
        if kind == "old":
            state = {f"state.{name}": value.numpy() for name, value in model.state_dict().items()}
    with replacing(file) as out:
        np.savez(out, docs=docs, queries=queries, **state)
    return docs, queries


def encoder_of(data: Collection, dataset: str, seed: int, kind: str, steps: int) -> WordEncoder:
    """A trained encoder of a kind other than minilm."""
    every = np.flatnonzero((data.docs > 0).any(1))
    if kind == "old":
        seen = every[~np.isin(data.topic[every], held_out(seed))]
        queries = data.train[~np.isin(data.query_topic[data.train], held_out(seed))]
        return trained(data, seen, queries, 1000 + seed, steps)
    if kind == "new":
        return trained(data, every, data.train, seed, 2 * steps)
    rows, _ = vectors(dataset, seed, "old", steps)
    with np.load(stored(dataset, seed, "old", steps)) as arrays:
        start = {name[6:]: torch.from_numpy(arrays[name]) for name in arrays if name.startswith("state.")}
    alignment, _, weight = kind.partition(" ")
    old = None if kind == "further" else torch.from_numpy(rows)
    return trained(data, every, data.train, seed, steps, old, alignment, float(weight or 1), start)


@torch.no_grad()
def pretrained(dataset: str) -> Vectors:
    """Unit vectors of MiniLM, without training."""
    data = load_retrieval(dataset, data_root(FILES[dataset]), "skip")
    tokenizer, model = load_encoder(MINILM, max_length=MINILM_TOKENS, pooling="mean", precision="fp32", dropout=0)
    docs, queries = (
        normalised(encode(model.eval(), tokenizer(side.to_pylist()))).numpy() for side in (data.docs, data.queries)
    )
    return docs, queries


def stored(dataset: str, seed: int, kind: str, steps: int) -> Path:
    return cache_dir() / "encoder-change" / f"{VERSION}-{dataset}-{seed}-{kind}-{steps}.npz"
