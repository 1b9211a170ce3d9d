"""The rule by which a sweep stops when its trials fail."""

from __future__ import annotations

import re
from collections import Counter

FIRST = 5
"""Without a limit, a sweep stops when the first ``FIRST`` trials to end all fail with one cause."""

WINDOW = 20
"""Without a limit, a sweep also stops when half of the first ``WINDOW`` trials fail."""


class FailureLimit:
    """Counts the ended and the failed trials of this driver.

    Two causes are equal if they differ only in numbers, such as an epoch or a process id.
    """

    def __init__(self, limit: int | None) -> None:
        """``limit``: number of failed trials that stop the sweep, at least 1; None for the default rules."""
        self._limit = limit
        self._ends: dict[int, str | None] = {}
        self._first: dict[str, int] = {}
        """The first trial that failed with each cause."""

    def count(self, trial: int, cause: str | None) -> int:
        """Count the end of a trial or of one of its seeds. ``cause`` is None unless it failed.

        A trial counts once. It has failed when one of its seeds has. Returns the first trial that failed with the same
        cause, which may be this one.
        """
        self._ends[trial] = cause or self._ends.get(trial)
        return trial if cause is None else self._first.setdefault(_without_numbers(cause), trial)

    @property
    def failed(self) -> list[str]:
        """The causes of the trials that failed."""
        return [cause for cause in self._ends.values() if cause is not None]

    def is_reached(self) -> bool:
        """Whether the sweep must stop."""
        if self._limit is not None:
            return len(self.failed) >= self._limit
        causes = list(self._ends.values())[:WINDOW]
        first = {cause and _without_numbers(cause) for cause in causes[:FIRST]}
        one_cause = len(causes) >= FIRST and len(first) == 1 and None not in first
        return one_cause or sum(cause is not None for cause in causes) >= WINDOW / 2

    def __str__(self) -> str:
        """Each cause with its count, the most frequent first."""
        failed = self.failed
        kinds = [_without_numbers(cause) for cause in failed]
        causes = [(failed[kinds.index(kind)], count) for kind, count in Counter(kinds).most_common()]
        all_failed = f"{len(failed)} of {len(self._ends)} trials failed"
        if len(causes) == 1:
            return f"{all_failed} with: {causes[0][0]}"
        return f"{all_failed}: " + "; ".join(f"{count} with: {cause}" for cause, count in causes)


def _without_numbers(cause: str) -> str:
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", cause)
