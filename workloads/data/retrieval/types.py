"""Documents, queries and relevance judgements: the data of every ranker, and how its queries are split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARTS = ("", "train", "dev", "test")
"""The parts of a source, in the order of their numbers in :attr:`Retrieval.parts`; "" where it has no split."""

Unknown: TypeAlias = Literal["refuse", "skip"]
"""What becomes of judgements that name a document or a query which is not there."""


@dataclass(frozen=True, eq=False)
class Retrieval:
    """A collection in the form of BEIR (Thakur et al., NeurIPS 2021), numbered from 0 in the order of its files.

    ``docs`` are title and text with a space between, ``doc_ids`` what the source calls them, and so for
    ``queries``: Arrow arrays of text, mapped from the cache. ``judgements`` (n, 3), int32, are rows [query, document,
    grade] ordered by query, then document; grade 0 was judged and is not relevant, a pair without a row was not judged.
    ``parts`` (Q,), int8, is each query's place in :data:`PARTS`. ``unknown`` names the first of the ``n_unknown``
    judgements that were left out, because their document or query is not there.
    """

    doc_ids: Any
    docs: Any
    query_ids: Any
    queries: Any
    judgements: NDArray[np.int32]
    parts: NDArray[np.int8]
    unknown: Sequence[str] = ()
    n_unknown: int = 0

    def __post_init__(self) -> None:
        for array in (self.judgements, self.parts):
            array.setflags(write=False)

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """(Q + 1,): the judgements of query q are the rows ``indptr[q]`` to ``indptr[q + 1]``."""
        import numpy as np

        counts = np.bincount(self.judgements[:, 0], minlength=len(self.queries))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @cached_property
    def empty_docs(self) -> NDArray[np.int64]:
        """The documents without any text: no query finds them."""
        return _empty(self.docs)

    @cached_property
    def empty_queries(self) -> NDArray[np.int64]:
        """The queries without any text: they find nothing."""
        return _empty(self.queries)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """The queries with a relevant document, (Q,): the others are in no part, for nothing could be measured."""
        import numpy as np

        relevant = np.zeros(len(self.queries), np.bool_)
        relevant[self.judgements[self.judgements[:, 2] > 0, 0]] = True
        return relevant

    def counts(self) -> dict[str, int]:
        """How much there is of everything, and of what is out of the ordinary."""
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
    """The numbers of the queries of each part, int64, ascending; every one has a document of a grade above 0."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split_queries(
    data: Retrieval, *, seed: int, validation: float = 0.2, test: float = 0.5, holdout: bool = True
) -> Queries:
    """The queries to train on, to select by and to test on. One without a relevant document is in none of them.

    The source's own parts where it has them, dev as validation; otherwise seeded draws: ``test`` is the share of all
    queries, ``validation`` that of what is left to train on, at least one query each. A draw belongs to the query's
    number and the seed alone.

    Args:
        data: the collection.
        seed: of the draws, not negative.
        validation: in (0, 1).
        test: in (0, 1).
        holdout: without it the validation queries are trained on and that part is empty.

    Raises:
        ValueError: there are too few queries for three parts, or a share is out of its bounds.
    """
    import numpy as np

    if not (0 < validation < 1 and 0 < test < 1):
        raise ValueError(f"shares of queries lie in (0, 1), got validation={validation} and test={test}")
    relevant = data.answered
    own = [np.flatnonzero(relevant & (data.parts == part)) for part in range(len(PARTS))]
    order = np.argsort(np.random.PCG64(seed).random_raw(len(relevant)), kind="stable")
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))  # a query's place in the seeded order

    tested = own[3]
    rest = np.concatenate([own[0], own[1]])
    if not len(tested):
        tested, rest = _drawn(rest, position, test)
    held, trained = (own[2], rest) if len(own[2]) else _drawn(rest, position, validation)
    if not (len(trained) and len(held) and len(tested)):
        raise ValueError(
            f"too few queries to split: {relevant.sum()} of {len(relevant)} have a relevant document, which leaves "
            f"{len(trained)} to train on, {len(held)} for validation and {len(tested)} for the test"
        )
    if not holdout:
        trained = np.concatenate([trained, held])
        held = held[:0]
    return Queries(np.sort(trained), np.sort(held), np.sort(tested))


def _drawn(
    queries: NDArray[np.int64], position: NDArray[np.int64], share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ``share`` of the queries that come first in the seeded order, at least one, and the others."""
    import numpy as np

    ordered = queries[np.argsort(position[queries])]
    count = min(len(queries), max(1, round(share * len(queries))))
    return ordered[:count], ordered[count:]


def _empty(texts: Any) -> NDArray[np.int64]:
    import numpy as np
    import pyarrow.compute as pc

    blank = pc.equal(pc.utf8_trim_whitespace(texts), "")
    return np.flatnonzero(blank.to_numpy(zero_copy_only=False))
