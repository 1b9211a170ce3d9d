"""LastEntries: the position of the last entry that has a document, against a dictionary."""

from __future__ import annotations

import numpy as np

from workloads.lifelong.last_entries import LastEntries

ASKED = np.arange(-2, 60)


def expected(entries: list[np.ndarray]) -> list[int]:
    last = {doc: position for position, docs in enumerate(entries) for doc in docs.tolist()}
    return [last.get(doc, -1) for doc in ASKED.tolist()]


def test_entries_added_one_by_one_equal_entries_given_at_once() -> None:
    rng = np.random.default_rng(0)
    entries = [rng.permutation(50)[: rng.integers(0, 12)] for _ in range(30)]
    added = LastEntries()
    for number, docs in enumerate(entries):
        added.add(docs)
        at_once = LastEntries(entries[: number + 1])
        assert added.positions(ASKED).tolist() == at_once.positions(ASKED).tolist() == expected(entries[: number + 1])
        assert added.docs.tolist() == at_once.docs.tolist()
        assert added.count == at_once.count


def test_every_position_is_minus_one_without_entries() -> None:
    assert LastEntries().positions(ASKED).tolist() == [-1] * len(ASKED)
