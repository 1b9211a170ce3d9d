"""The type of retrieval collections, the data of every ranker, and the split of their queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from workloads.data.normal_text import normal_text
from workloads.seeding import derive, random_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = ("", "train", "dev", "test")
"""Parts of a source, in the order of their numbers in :attr:`Retrieval.parts`; "" if it has no split."""

Unknown: TypeAlias = Literal["refuse", "skip"]
"""Policy for judgements of unknown documents or queries."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """A collection in the form of BEIR (Thakur et al., NeurIPS 2021), numbered from 0 in the order of its files.

    ``docs`` are titles and texts joined by a space, ``doc_ids`` the source's ids; the same for ``queries``. These are
    Arrow arrays of text, mapped from the cache. ``judgements`` (n, 3) int32 has rows [query, document, grade] ordered
    by query, then document; grade 0 is judged not relevant, a pair without a row is not judged. ``parts`` (Q,) int8 is
    the index in :data:`PARTS`. ``unknown`` lists the first of the ``n_unknown`` judgements that were removed because
    their document or query is unknown. ``own``: whether it is a user's, and not of the catalogue.
    """

    doc_ids: Any
    docs: Any
    query_ids: Any
    queries: Any
    judgements: NDArray[np.int32]
    parts: NDArray[np.int8]
    unknown: Sequence[str] = ()
    n_unknown: int = 0
    own: bool = False

    def __post_init__(self) -> None:
        for array in (self.judgements, self.parts):
            array.setflags(write=False)

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """Offsets (Q + 1,): query q has the judgements ``indptr[q]`` to ``indptr[q + 1]``."""
        import numpy as np

        counts = np.bincount(self.judgements[:, 0], minlength=len(self.queries))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @cached_property
    def empty_docs(self) -> NDArray[np.int64]:
        """Documents without text, which no query can find."""
        return _empty(self.docs)

    @cached_property
    def empty_queries(self) -> NDArray[np.int64]:
        """Queries without text, which find nothing."""
        return _empty(self.queries)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Mask (Q,) of queries with a relevant document. The others are in no part, since they cannot be evaluated."""
        import numpy as np

        relevant = np.zeros(len(self.queries), np.bool_)
        relevant[self.judgements[self.judgements[:, 2] > 0, 0]] = True
        return relevant

    @cached_property
    def family(self) -> NDArray[np.int64]:
        """For each query the first one with the same text, (Q,): training on one is training on all of them."""
        import numpy as np

        first: dict[str, int] = {}
        texts = map(normal_text, self.queries.to_pylist())
        return np.array([first.setdefault(text, number) for number, text in enumerate(texts)], np.int64)

    def grades(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> NDArray[np.float32]:
        """The grade of each pair, 0 without a judgement. ``queries`` and ``docs`` are indices, broadcast; -1 pads."""
        import numpy as np

        row, judged = self._judgement_rows(queries, docs)
        return np.where(judged, self.judgements[row, 2], 0).astype(np.float32)

    def is_judged(self, queries: NDArray[np.int64], docs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each pair has a judgement. Arguments as of :meth:`grades`."""
        return self._judgement_rows(queries, docs)[1]

    def judged_grades(self, queries: NDArray[np.int64]) -> NDArray[np.float32]:
        """The grades of all judged documents of each query, (n,) to (n, J), padded with 0."""
        import numpy as np

        starts = self.indptr[queries]
        counts = self.indptr[queries + 1] - starts
        grades = np.zeros((len(queries), int(counts.max(initial=0))), np.float32)
        row, column = np.nonzero(np.arange(grades.shape[1]) < counts[:, None])
        grades[row, column] = self.judgements[starts[row] + column, 2]
        return grades

    def _judgement_rows(
        self, queries: NDArray[np.int64], docs: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Each pair's row in the sorted judgements, and whether it has one."""
        codes = queries * len(self.docs) + docs
        row = self._codes.searchsorted(codes).clip(max=len(self._codes) - 1)
        return row, (self._codes[row] == codes) & (docs >= 0)

    @cached_property
    def _codes(self) -> NDArray[np.int64]:
        """A number for each judged pair, ascending."""
        import numpy as np

        rows = self.judgements.astype(np.int64)
        return rows[:, 0] * len(self.docs) + rows[:, 1]

    def counts(self) -> dict[str, int]:
        """Counts of documents, queries and judgements, and of unusual ones."""
        return {
            "documents": len(self.docs),
            "queries": len(self.queries),
            "judgements": len(self.judgements),
            "queries_without_relevant": int((~self.answered).sum()),
            "empty_documents": len(self.empty_docs),
            "empty_queries": len(self.empty_queries),
            "unknown_judgements": self.n_unknown,
        }


class Queries(NamedTuple):
    """Query numbers of each part, int64, ascending. Every query has a document with a grade above 0."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split_queries(data: Retrieval, *, seed: int, validation: float = 0.2, test: float = 0.5) -> Queries:
    """Split the queries into train, validation and test. Queries without a relevant document are in none of them.

    Uses the source's own parts, with dev as validation. Parts that it does not have are drawn: ``test`` is a share of
    all queries, ``validation`` a share of the rest, at least one query each. A draw depends only on the query's number
    and the seed; queries with the same text are drawn together.

    Args:
        data: the collection.
        seed: seed of the draws, not negative.
        validation: in (0, 1).
        test: in (0, 1).

    Raises:
        ValueError: there are too few queries for three parts, or a share is out of its bounds.
    """
    import numpy as np

    if not (0 < validation < 1 and 0 < test < 1):
        raise ValueError(f"shares of queries lie in (0, 1), got validation={validation} and test={test}")
    relevant = data.answered
    own = [np.flatnonzero(relevant & (data.parts == part)) for part in range(len(PARTS))]
    # The same seed also orders documents into sessions, and query i of a user's collection may belong to document i.
    order = random_order(len(relevant), derive(seed, "queries") if data.own else seed)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))  # position of each query in the seeded order
    np.minimum.at(position, data.family, position)
    position = position[data.family]

    tested = own[3]
    rest = np.concatenate([own[0], own[1]])
    if not len(tested):
        tested, rest = _drawn(rest, position, test)
    held, trained = (own[2], rest) if len(own[2]) else _drawn(rest, position, validation)
    if not (len(trained) and len(held) and len(tested)):
        drawn = (("validation", validation, own[2], held), ("test", test, own[3], tested))
        larger = [f"split_{name}={share:g}" for name, share, given, part in drawn if not len(given) and len(part) > 1]
        raise ValueError(
            f"too few queries to split: {relevant.sum()} of {len(relevant)} have a relevant document, which leaves "
            f"{len(trained)} to train on, {len(held)} for validation and {len(tested)} for the test"
            + (f". Lower {' or '.join(larger)}" if larger else "")
        )
    return Queries(np.sort(trained), np.sort(held), np.sort(tested))


def _drawn(
    queries: NDArray[np.int64], position: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first ``share`` of the queries in the seeded order, at least one, and the rest.

    Those with the same position are on one side.
    """
    import numpy as np

    ordered = queries[np.argsort(position[queries], kind="stable")]
    count = min(len(queries), max(1, round(share * len(queries))))
    count = int(np.searchsorted(position[ordered], position[ordered[count - 1]], "right")) if count else 0
    return ordered[:count], ordered[count:]


def _empty(texts: Any) -> NDArray[np.int64]:
    import numpy as np
    import pyarrow.compute as pc

    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    return np.flatnonzero(blank.to_numpy(zero_copy_only=False))
