"""Quality against the share of documents embedded again, when the encoder of an index changes.

The old encoder is trained from scratch on the documents and labelled queries of some topics; two of five topics are
held out, other ones for each seed. Its index has the documents of all topics. The new encoder is trained from scratch,
from another seed, on all documents and all training queries, in twice as many steps; or it is MiniLM as published.
L2R's encoders are the old one, trained further on these in as many steps as it was trained.

A method is a reading of the old rows, its setting (the calibration of scores, or the weight of L2R's alignment), and
the choice of the documents to embed again. A row of the table is a set of methods. For each seed and share, the one
with the highest mean Recall@100 over the validation queries, which train no encoder, is evaluated on the test
queries, once. Maps, scales and expected gains are learnt from the training queries, and for the test from the
validation queries too.

Vectors and measured seeds are stored as soon as they are known, so that the script can be interrupted and continued.
``results/encoder_change.json`` has the means over seeds and, at a share of 10%, paired tests over the test queries, of
each query's mean over seeds. ``seen``: the difference that the test would have seen with power .8.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from changed_encoders import FILES, MINILM, STEPS, collection, held_out, kind_of, stored, vectors
from harness import HERE, origin, read_results, write_results
from numpy.typing import NDArray

from orchestrator.report.statistics import Difference, holm, over_units
from workloads.data.cache import replacing
from workloads.lifelong.encoder_change import Spaces, by_age, by_expected_gain, mixed, read
from workloads.seeding import random_order

SHARES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
GOAL_SHARE, GOAL = 0.1, 0.005
REFERENCE = 200
NEW = ("new", MINILM)
"""New encoders."""

CHOICES = ("random", "oldest", "newest", "gain")
READINGS = {
    "none": ("raw",), "query map": ("raw", "standardised"), "document map": ("raw", "standardised"),
    "both and map": ("standardised",), "both encoders": ("raw", "affine", "standardised"),
}  # fmt: skip
"""Calibrations of each reading."""

ALIGNMENTS = {"L2R, embedding alignment": "embedding", "L2R, ranking alignment": "ranking"}
WEIGHTS = ("0.3", "1", "3")
FURTHER = "trained further"


class Method(NamedTuple):
    """A reading, its setting and the choice of documents."""

    reading: str
    setting: str
    choice: str


def methods(new: str) -> list[Method]:
    """All methods for a new encoder. Without a map it reads no rows of another length."""
    settings = {name: some for name, some in READINGS.items() if name != "none" or new == "new"}
    settings |= {**dict.fromkeys(ALIGNMENTS, WEIGHTS), FURTHER: ("",)}
    return [Method(name, one, choice) for name, some in settings.items() for one in some for choice in CHOICES]


def rows_of(new: str) -> dict[str, list[Method]]:
    """The rows of the table: the methods among which each one chooses."""
    every = methods(new)
    rows = {"chosen of all": every}
    for reading in dict.fromkeys(method.reading for method in every):
        rows[reading] = [method for method in every if method.reading == reading]
    for reading in ("both encoders", *ALIGNMENTS):
        for choice in CHOICES:
            rows[f"{reading}, {choice}"] = [one for one in rows[reading] if one.choice == choice]
    return rows


COMPARED = {"no_update": ("no update", 0.0), "full": ("both encoders", 1.0), "further": (FURTHER, 1.0)}
"""What each row is tested against: the old encoder's index, the new one's, and that of the old one trained further."""

SEEN = 1.959964 + 0.841621
"""Standard errors of the smallest difference that is seen: two-sided at .05, with power .8."""

MEASURES = ("recall_at_100", "mrr_at_10")
Cell = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Phase:
    """Validation or test of a seed: all methods on some queries, with past queries to learn from.

    ``docs`` and ``queries``: unit vectors by the kind of encoder. ``orders``: all documents by each choice.
    """

    docs: Mapping[str, NDArray[np.float64]]
    queries: Mapping[str, NDArray[np.float64]]
    new: str
    rows: NDArray[np.int64]
    past: Spaces
    orders: Mapping[str, NDArray[np.int64]]
    relevant: NDArray[np.bool_]
    seed: int

    def measured(self, method: Method, share: float) -> Cell:
        count = len(self.relevant.T)
        again = np.zeros(count, np.bool_)
        again[self.orders[method.choice][: round(share * count)]] = True
        if method.reading in (*ALIGNMENTS, FURTHER):
            alignment = ALIGNMENTS.get(method.reading)
            kind = kind_of(alignment, float(method.setting)) if alignment else "further"
            query = self.queries[kind][self.rows]
            return measures(mixed(query @ self.docs["old"].T, query @ self.docs[kind].T, again), self.relevant)
        reference = np.random.default_rng(self.seed).permutation(np.flatnonzero(again))[:REFERENCE]
        queries = Spaces(self.queries["old"][self.rows], self.queries[self.new][self.rows])
        documents = Spaces(self.docs["old"], self.docs[self.new])
        scores = read(method.reading, method.setting, queries, documents, again, self.past, reference)
        return measures(scores, self.relevant)

    def no_update(self) -> Cell:
        return measures(self.queries["old"][self.rows] @ self.docs["old"].T, self.relevant)


def phases(dataset: str, new: str, seed: int, steps: int) -> tuple[Phase, Phase]:
    """Validation and test."""
    data = collection(dataset)
    every = np.flatnonzero((data.docs > 0).any(1))
    kinds = ("old", new, "further", *(kind_of(one, float(weight)) for one in ALIGNMENTS.values() for weight in WEIGHTS))
    by = {kind: vectors(dataset, seed, kind, steps) for kind in kinds}
    docs = {kind: side[0][every].astype(np.float64) for kind, side in by.items()}
    queries = {kind: side[1].astype(np.float64) for kind, side in by.items()}
    age = np.isin(data.topic[every], held_out(seed)).astype(np.int64)

    def phase(rows: NDArray[np.int64], *known: NDArray[np.int64]) -> Phase:
        past = Spaces(*(queries[kind][np.sort(np.concatenate(known))] for kind in ("old", new)))
        ranked = np.argsort(-(past.old @ docs["old"].T), axis=1, kind="stable")[:, :100]
        orders = {
            "random": random_order(len(every), seed), "oldest": by_age(age), "newest": by_age(-age),
            "gain": by_expected_gain(ranked, len(every)),
        }  # fmt: skip
        return Phase(docs, queries, new, rows, past, orders, data.relevant[np.ix_(rows, every)], seed)

    return phase(data.validation, data.train), phase(data.test, data.train, data.validation)


def measured(dataset: str, new: str, seed: int, steps: int) -> tuple[dict[str, Any], dict[str, Cell]]:
    """What validation says and chose, and each test query's measures by row and share. Stored in the cache."""
    file = stored(dataset, seed, f"rows of {new}", steps)
    if not file.exists():
        validation, test = phases(dataset, new, seed, steps)
        values = {
            (method, share): float(validation.measured(method, share)["recall_at_100"].mean())
            for method in methods(new) for share in SHARES
        }  # fmt: skip
        cells = {name_of("no update", 0.0): test.no_update()}
        chosen: dict[str, Method] = {}
        for row, among in rows_of(new).items():
            for share in SHARES:
                best = max(among, key=lambda one: values[one, share])
                chosen[name_of(row, share)] = best
                cells[name_of(row, share)] = test.measured(best, share)
        said = {"validation": [[*one, share, value] for (one, share), value in values.items()], "chosen": chosen}
        with replacing(file) as out:
            flat = {f"{name}|{key}": side for name, cell in cells.items() for key, side in cell.items()}
            np.savez(out, said=json.dumps(said), **flat)
    with np.load(file) as arrays:
        names = list(dict.fromkeys(key.rpartition("|")[0] for key in arrays if "|" in key))
        return json.loads(str(arrays["said"])), {n: {key: arrays[f"{n}|{key}"] for key in MEASURES} for n in names}


def name_of(row: str, share: float) -> str:
    return f"{row} {share:g}"


def measures(scores: NDArray[np.float64], relevant: NDArray[np.bool_]) -> Cell:
    """Recall@100 and MRR@10 of each query, (Q,). Ties by document."""
    top = np.sort(np.argpartition(-scores, 99, axis=1)[:, :100], axis=1)
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    hits = np.take_along_axis(relevant, np.take_along_axis(top, order, 1), 1)
    first = np.where(hits[:, :10].any(1), 1 / (1 + hits[:, :10].argmax(1)), 0.0)
    return {"recall_at_100": hits.sum(1) / relevant.sum(1), "mrr_at_10": first}


def table(dataset: str, new: str, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Means over seeds of every row, and tests against those of :data:`COMPARED`, corrected by Holm."""
    runs = [measured(dataset, new, seed, steps) for seed in seeds]
    rows: list[dict[str, Any]] = []
    for row, share in [("no update", 0.0), *((row, share) for row in rows_of(new) for share in SHARES)]:
        name = name_of(row, share)
        means = {measure: float(np.mean([cells[name][measure] for _, cells in runs])) for measure in MEASURES}
        picks = Counter(", ".join(filter(None, said["chosen"][name])) for said, _ in runs if name in said["chosen"])
        rows.append({"row": row, "share": share, **means, "chosen": dict(picks)})
    judged = [row for row in rows if row["share"] == GOAL_SHARE]
    for other, against in COMPARED.items():
        sides = [
            [np.mean([cells[one]["recall_at_100"] for _, cells in runs], axis=0) for one in names]
            for names in ((name_of(row["row"], GOAL_SHARE), name_of(*against)) for row in judged)
        ]
        tests = [over_units(*pair) for pair in sides]
        for row, pair, test, p in zip(judged, sides, tests, holm([1.0 if one.p is None else one.p for one in tests])):
            error = float((pair[0] - pair[1]).std(ddof=1) / np.sqrt(len(pair[0])))
            row[f"less_{other}"] = {"difference": interval(test), "p_holm": p, "seen": SEEN * error}
            if other == "full":
                row["within_goal"] = bool((test.value if test.low is None else test.low) > -GOAL)
    data = collection(dataset)
    validation = np.mean([[line[-1] for line in said["validation"]] for said, _ in runs], axis=0)
    return {
        "new": new, "seeds": list(seeds), "steps": steps, "queries": len(data.test),
        "validation_queries": len(data.validation), "documents": len(data.docs), "rows": rows,
        "validation": [[*line[:-1], round(v, 5)] for line, v in zip(runs[0][0]["validation"], validation.tolist())],
    }  # fmt: skip


def interval(test: Difference) -> str:
    """A difference with the ends of its interval, without it where all queries are equal."""
    ends = "" if test.low is None else f" ({test.low:.5f} to {test.high:.5f})"
    return f"{test.value:+.5f}{ends}"


def show(name: str, result: dict[str, Any]) -> None:
    print(f"\n{name}: {result['queries']} test queries, {result['documents']} documents, seeds {result['seeds']}")
    print(f"| row | {' | '.join(f'{share:.0%}' for share in SHARES)} |\n|{' --- |' * (1 + len(SHARES))}")
    for row, cells in by_row(result):
        values = [f"{cell['recall_at_100']:.4f}" for cell in cells]
        print(f"| {row} | {' | '.join(values)} |")
    print("\n| at 10% | MRR@10 | less no update | p | less full | p | seen | chosen |\n|" + " --- |" * 8)
    for row in result["rows"]:
        if row["share"] == GOAL_SHARE:
            above, below = (row[f"less_{other}"] for other in ("no_update", "full"))
            print(
                f"| {row['row']} | {row['mrr_at_10']:.4f} | {above['difference']} | {above['p_holm']:.2g} | "
                f"{below['difference']} | {below['p_holm']:.2g} | {below['seen']:.4f} | {row['chosen']} |"
            )


def by_row(result: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in dict.fromkeys(row["row"] for row in result["rows"]):
        yield name, [row for row in result["rows"] if row["row"] == name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--new", nargs="+", default=list(NEW), choices=list(NEW), help="new encoders")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="of the old encoder")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "encoder_change.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for new in args.new:
        for dataset in args.dataset:
            made = origin()
            for seed in range(args.seeds):
                began = time.monotonic()
                measured(dataset, new, seed, args.steps)
                print(f"{dataset}, {new}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
            name = dataset if new == "new" else f"{dataset}, {new}"
            result = {**made, **table(dataset, new, range(args.seeds), args.steps)}
            write_results(args.out, {**read_results(args.out), name: result})
            show(name, result)


if __name__ == "__main__":
    main()
