"""Types of sentence pair datasets: two texts and a similarity score, in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KIND = "sentence_pairs"
ALIASES = {"glue/stsb": "glue-stsb"}
"""Other names of datasets of pairs, which would otherwise be paths."""

HIGHEST = 5.0
"""Scores are from 0, unrelated, to 5, the same meaning."""

HIDDEN = -1.0
"""Stands for a score that the source does not publish."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """n pairs: two texts each, and scores (n,) float32 from 0 to 5, all -1 if hidden, as those of plain sentences."""

    first: list[str]
    second: list[str]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def hidden(self) -> bool:
        """Whether the scores are hidden."""
        return bool(len(self) and (self.scores == HIDDEN).all())

    def take(self, rows: NDArray[Any]) -> Pairs:
        """The pairs at these rows."""
        numbers = rows.tolist()
        return Pairs([self.first[one] for one in numbers], [self.second[one] for one in numbers], self.scores[rows])

    def __add__(self, other: Pairs) -> Pairs:
        import numpy as np

        scores = np.concatenate([self.scores, other.scores])
        return Pairs(self.first + other.first, self.second + other.second, scores)


@dataclass(frozen=True, slots=True, eq=False)
class SentencePairs:
    """The parts of a dataset; None for those that the source does not have."""

    train: Pairs
    validation: Pairs | None = None
    test: Pairs | None = None
