"""Quality against the share of documents embedded again, when the encoder of an index changes.

The old encoder is trained from scratch on the documents and labelled queries of some topics; two of five topics are
held out, other ones for each seed. Its index has the documents of all topics. The new encoder is trained from scratch,
from another seed, on all documents and all training queries, in twice as many steps; L2R's encoders are the old one,
trained further on these in as many steps again. All are averages of word vectors with a layer, which train in seconds.

Vectors and measured pieces are stored as soon as they are known, so that the script can be interrupted and continued.
``results/encoder_change.json`` has the means over seeds and, at a share of 10%, paired tests over the test queries, of
each query's mean over seeds. ``seen``: the difference that the test would have seen with power .8.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HERE, data_root, origin
from numpy.typing import NDArray
from torch import nn

from orchestrator.report.statistics import Difference, holm, over_units
from workloads.data.cache import cache_dir, replacing
from workloads.data.retrieval.bm25 import Tokenised
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.types import split_queries
from workloads.lifelong.encoder_change import Spaces, at_random, by_age, by_expected_gain, mixed, read
from workloads.lifelong.sessions import Stream, query_topics, topics_of
from workloads.losses.alignment import embedding_alignment_loss, rank_loss, ranking_alignment_loss

FILES = {"scifact": "scifact/queries.jsonl", "classic-ir": "classic-ir/cran/queries.jsonl"}
VERSION = 1
"""Of what is stored in the cache."""

SHARES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
GOAL_SHARE, GOAL = 0.1, 0.005
DIM, BATCH, STEPS, LR, TEMPERATURE = 64, 96, 100, 5e-3, 0.05
VOCABULARY, WORDS, SPAN = 10_000, 80, 12
"""The most frequent words; words of a text that are read, and of the part of a document that serves as a query."""

REFERENCE = 200
METHODS: tuple[tuple[str, str, str], ...] = (
    ("none", "raw", "random"),
    ("query map", "raw", "random"),
    ("query map", "standardised", "random"),
    ("document map", "raw", "random"),
    ("document map", "standardised", "random"),
    ("both and map", "standardised", "random"),
    ("both encoders", "raw", "random"),
    ("both encoders", "affine", "random"),
    ("both encoders", "standardised", "random"),
    ("both encoders", "standardised", "gain"),
    ("both encoders", "standardised", "oldest"),
    ("both encoders", "standardised", "newest"),
    ("L2R, embedding alignment", "raw", "random"),
    ("L2R, ranking alignment", "raw", "random"),
    ("trained further", "raw", "random"),
)
"""Reading, calibration and choice. The last three are the old encoder, trained further."""

FURTHER = {
    "L2R, embedding alignment": "embedding", "L2R, ranking alignment": "ranking", "trained further": "further",
}  # fmt: skip
COMPARED = {
    "no_update": ("no update", "raw", "random", 0.0),
    "full": ("both encoders", "raw", "random", 1.0),
    "further": ("trained further", "raw", "random", 1.0),
}
"""What each cell is tested against: the old encoder's index, the new one's, and that of the old one trained further."""

SEEN = 1.959964 + 0.841621
"""Standard errors of the smallest difference that is seen: two-sided at .05, with power .8."""

MEASURES = ("recall_at_100", "mrr_at_10")
Cell = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Collection:
    """Texts as word numbers from 1, (n, WORDS), padded with 0: ``docs`` and ``queries``; judgements, topics, parts."""

    docs: NDArray[np.int64]
    queries: NDArray[np.int64]
    relevant: NDArray[np.bool_]
    topic: NDArray[np.int16]
    query_topic: NDArray[np.int16]
    train: NDArray[np.int64]
    past: NDArray[np.int64]
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
    past = np.sort(np.concatenate([parts.train, parts.validation]))
    query_topic = query_topics(data, topic)
    frequency = np.bincount(np.concatenate([np.unique(np.array(text, np.int64)) for text in texts[0]]))
    number = np.zeros(len(frequency), np.int64)
    kept = np.argsort(-frequency, kind="stable")[:VOCABULARY]
    number[kept] = np.arange(1, len(kept) + 1)
    sides = [padded([number[np.array(text, np.int64)] for text in side]) for side in texts]
    return Collection(*sides, relevant, topic, query_topic, parts.train, past, parts.test)


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
    old: torch.Tensor | None = None, alignment: str = "", start: Mapping[str, torch.Tensor] | None = None,
) -> WordEncoder:  # fmt: skip
    """An encoder trained on documents, a part of which finds the rest, and on labelled queries, in equal numbers.

    It goes on from the weights ``start``. With an ``alignment`` it learns to read the vectors ``old`` of all documents:
    L_rank and an L_align.
    """
    random = np.random.default_rng([seed, 7])
    torch.manual_seed(seed)
    size = int(data.docs.max()) + 1
    counts = np.bincount(np.concatenate([np.unique(row) for row in data.docs[docs]]), minlength=size)
    known = counts > 1  # of its own documents
    known[0] = False
    weight = torch.from_numpy(np.log(np.log((1 + len(docs)) / (1 + counts)) + 1e-3)).float()
    model = WordEncoder(size, known, weight)
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
        loss = contrast(query, fresh, same, None if old is None else old[torch.from_numpy(chosen)], alignment).mean()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / 20) * (1 - step / steps)
        optimizer.step()
    return model.eval()


def contrast(
    query: torch.Tensor, fresh: torch.Tensor, same: torch.Tensor, stored: torch.Tensor | None, alignment: str
) -> torch.Tensor:
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
        return loss + embedding_alignment_loss(stored_block, fresh_block, there) / there.sum(1)
    return loss + ranking_alignment_loss(query, stored_block, fresh_block, there)


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


def vectors(dataset: str, seed: int, kind: str, steps: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors of documents and queries by an encoder: old, new, embedding, ranking or further. Stored in the cache."""
    file = stored(dataset, seed, kind, steps)
    if file.exists():
        with np.load(file) as arrays:
            return arrays["docs"], arrays["queries"]
    data = collection(dataset)
    every = np.flatnonzero((data.docs > 0).any(1))
    if kind == "old":
        seen = every[~np.isin(data.topic[every], held_out(seed))]
        queries = data.train[~np.isin(data.query_topic[data.train], held_out(seed))]
        model = trained(data, seen, queries, 1000 + seed, steps)
    elif kind == "new":
        model = trained(data, every, data.train, seed, 2 * steps)
    else:
        rows, _ = vectors(dataset, seed, "old", steps)
        with np.load(stored(dataset, seed, "old", steps)) as arrays:
            start = {name[6:]: torch.from_numpy(arrays[name]) for name in arrays if name.startswith("state.")}
        old = None if kind == "further" else torch.from_numpy(rows)
        model = trained(data, every, data.train, seed, steps, old, "" if old is None else kind, start)
    docs, queries = encoded(model, data)
    state = {f"state.{name}": value.numpy() for name, value in model.state_dict().items()} if kind == "old" else {}
    with replacing(file) as out:
        np.savez(out, docs=docs, queries=queries, **state)
    return docs, queries


def stored(dataset: str, seed: int, kind: str, steps: int) -> Path:
    return cache_dir() / "encoder-change" / f"{VERSION}-{dataset}-{seed}-{kind}-{steps}.npz"


def measured(dataset: str, seed: int, steps: int) -> dict[str, Cell]:
    """Each test query's measures in every cell, by the cell's name. Stored in the cache."""
    file = stored(dataset, seed, "cells", steps)
    if not file.exists():
        cells = dict(cells_of(dataset, seed, steps))
        with replacing(file) as out:
            np.savez(out, **{f"{name}|{key}": side for name, cell in cells.items() for key, side in cell.items()})
    with np.load(file) as arrays:
        names = list(dict.fromkeys(key.rpartition("|")[0] for key in arrays))
        return {name: {key: arrays[f"{name}|{key}"] for key in MEASURES} for name in names}


def name_of(method: tuple[str, str, str], share: float) -> str:
    return json.dumps([*method, share])


def cells_of(dataset: str, seed: int, steps: int) -> Iterator[tuple[str, Cell]]:
    data = collection(dataset)
    every = np.flatnonzero((data.docs > 0).any(1))
    relevant = data.relevant[np.ix_(data.test, every)]
    by = {kind: vectors(dataset, seed, kind, steps) for kind in ("old", "new", *FURTHER.values())}
    # float32 is enough for the scores, and maps are fitted in float64.
    docs = {kind: side[0][every].astype(np.float64) for kind, side in by.items()}
    asked = {kind: side[1].astype(np.float64) for kind, side in by.items()}
    documents = Spaces(docs["old"], docs["new"])
    test, past = (Spaces(asked["old"][rows], asked["new"][rows]) for rows in (data.test, data.past))
    yield name_of(("no update", "raw", "random"), 0.0), measures(test.old @ documents.old.T, relevant)
    age = np.isin(data.topic[every], held_out(seed)).astype(np.int64)
    ranked = np.argsort(-(past.old @ documents.old.T), axis=1, kind="stable")[:, :100]
    orders = {
        "random": at_random(len(every), seed), "oldest": by_age(age), "newest": by_age(-age),
        "gain": by_expected_gain(ranked, len(every)),
    }  # fmt: skip
    for method in METHODS:
        reading, calibration, choice = method
        for share in SHARES:
            again = np.zeros(len(every), np.bool_)
            again[orders[choice][: round(share * len(every))]] = True
            reference = np.random.default_rng(seed).permutation(np.flatnonzero(again))[:REFERENCE]
            if reading in FURTHER:
                kind = FURTHER[reading]
                query = asked[kind][data.test]
                scores = mixed(query @ documents.old.T, query @ docs[kind].T, again)
            else:
                scores = read(reading, calibration, test, documents, again, past, reference)
            yield name_of(method, share), measures(scores, relevant)


def measures(scores: NDArray[np.float64], relevant: NDArray[np.bool_]) -> Cell:
    """Recall@100 and MRR@10 of each query, (Q,). Ties by document."""
    top = np.sort(np.argpartition(-scores, 99, axis=1)[:, :100], axis=1)
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    hits = np.take_along_axis(relevant, np.take_along_axis(top, order, 1), 1)
    first = np.where(hits[:, :10].any(1), 1 / (1 + hits[:, :10].argmax(1)), 0.0)
    return {"recall_at_100": hits.sum(1) / relevant.sum(1), "mrr_at_10": first}


def table(dataset: str, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Means over seeds of every cell, and tests against those of :data:`COMPARED`, corrected by Holm."""
    runs = [measured(dataset, seed, steps) for seed in seeds]
    rows = []
    for name in runs[0]:
        reading, calibration, choice, share = json.loads(name)
        means = {measure: float(np.mean([run[name][measure] for run in runs])) for measure in MEASURES}
        rows.append({"reading": reading, "calibration": calibration, "choice": choice, "share": share, **means})
    judged = [row for row in rows if row["share"] == GOAL_SHARE]
    for other, against in COMPARED.items():
        sides = [
            [np.mean([run[one]["recall_at_100"] for run in runs], axis=0) for one in (cell(row), json.dumps(against))]
            for row in judged
        ]
        tests = [over_units(*pair) for pair in sides]
        for row, pair, test, p in zip(judged, sides, tests, holm([1.0 if one.p is None else one.p for one in tests])):
            error = float((pair[0] - pair[1]).std(ddof=1) / np.sqrt(len(pair[0])))
            row[f"less_{other}"] = {"difference": interval(test), "p_holm": p, "seen": SEEN * error}
            if other == "full":
                row["within_goal"] = bool((test.value if test.low is None else test.low) > -GOAL)
    data = collection(dataset)
    about = {"seeds": list(seeds), "steps": steps, "queries": len(data.test), "documents": len(data.docs)}
    return {**about, "rows": rows}


def cell(row: Mapping[str, Any]) -> str:
    """The name of a row's cell."""
    return json.dumps([row[name] for name in ("reading", "calibration", "choice", "share")])


def interval(test: Difference) -> str:
    """A difference with the ends of its interval, without it where all queries are equal."""
    ends = "" if test.low is None else f" ({test.low:.5f} to {test.high:.5f})"
    return f"{test.value:+.5f}{ends}"


def show(dataset: str, result: dict[str, Any]) -> None:
    print(f"\n{dataset}: {result['queries']} test queries, {result['documents']} documents, seeds {result['seeds']}")
    print("| reading | scores | choice | share | Recall@100 | MRR@10 | less no update | less full | seen |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in result["rows"]:
        line = f"| {row['reading']} | {row['calibration']} | {row['choice']} | {row['share']:g} "
        line += f"| {row['recall_at_100']:.4f} | {row['mrr_at_10']:.4f} |"
        if row["share"] == GOAL_SHARE:
            above, below = (row[f"less_{other}"] for other in ("no_update", "full"))
            line += f" {above['difference']}, p = {above['p_holm']:.2g} |"
            line += f" {below['difference']}, p = {below['p_holm']:.2g} | {below['seen']:.4f} |"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="of the old encoder")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "encoder_change.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for dataset in args.dataset:
        made = origin()
        for seed in range(args.seeds):
            measured(dataset, seed, args.steps)
            print(f"{dataset}, seed {seed}: measured", flush=True)
        results[dataset] = {**made, **table(dataset, range(args.seeds), args.steps)}
        args.out.write_text(json.dumps(results, indent=1) + "\n")
        show(dataset, results[dataset])


if __name__ == "__main__":
    main()
