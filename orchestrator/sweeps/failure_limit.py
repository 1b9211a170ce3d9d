"""The rule by which a sweep stops when its trials fail."""

from __future__ import annotations

import re

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

    def count(self, trial: int, cause: str | None) -> None:
        """Count the end of a trial or of one of its seeds. ``cause`` is None unless it failed.

        A trial counts once. It has failed when one of its seeds has.
        """
        self._ends[trial] = cause or self._ends.get(trial)

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
        """The most frequent cause and its count."""
        kinds = [_without_numbers(cause) for cause in self.failed]
        commonest = max(kinds, key=kinds.count)
        count = kinds.count(commonest)
        others = f" ({len(kinds)} failed in all)" if count < len(kinds) else ""
        return f"{count} of {len(self._ends)} trials failed with: {self.failed[kinds.index(commonest)]}{others}"


def _without_numbers(cause: str) -> str:
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", cause)
