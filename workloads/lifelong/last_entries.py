"""The last of a list of entries that has a document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class LastEntries:
    """For each document of a list of entries, the position of the last entry that has it.

    ``docs`` (D,): the documents, ascending. ``last`` (D,): these positions.
    """

    def __init__(self, entries: Sequence[NDArray[np.int64]] = ()) -> None:
        """``entries``: the documents of each, (n,), distinct within an entry."""
        self.count = len(entries)
        every = np.concatenate([np.empty(0, np.int64), *entries])
        positions = np.repeat(np.arange(len(entries)), [len(docs) for docs in entries])
        self.docs, row = np.unique(every[::-1], return_index=True)
        self.last = positions[len(every) - 1 - row]

    def add(self, docs: NDArray[np.int64]) -> None:
        """Add an entry with these documents, (n,). Takes time of all D documents only if some of them are new."""
        is_new = self.positions(docs) < 0
        if is_new.any():
            new = np.sort(docs[is_new])
            rows = np.searchsorted(self.docs, new)
            self.docs = np.insert(self.docs, rows, new)
            self.last = np.insert(self.last, rows, 0)
        self.last[np.searchsorted(self.docs, docs)] = self.count
        self.count += 1

    def positions(self, docs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position for each document, (n,); -1 if no entry has it."""
        if not len(self.docs):
            return np.full(len(docs), -1, np.int64)
        row = np.searchsorted(self.docs[:-1], docs)
        return np.where(self.docs[row] == docs, self.last[row], -1)
