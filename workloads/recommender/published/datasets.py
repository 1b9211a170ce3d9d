"""Sizes of the datasets, as printed in tables 3.1, 4.1 and 5.1 and as they are here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from workloads.published import Computation, Drawn, size_table

if TYPE_CHECKING:
    from workloads.data.interactions.variants import Split

_SIZES = ("users", "items", "train", "test", "density")

_MOVIELENS = {"ml-100k": (943, 1682, 80_000, 20_000), "ml-1m": (6040, 3952, 800_000, 200_000)}
_PRINTED: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    "3.1": {
        "ml-100k": (943, 1682, 89_372, 10_628, 0.0630),
        "ml-1m": (6040, 3952, 887_007, 113_202, 0.0419),
        "yahoo-r3": (5400, 1000, 129_180, 12_520, 0.0262),
    },
    "4.1": {**_MOVIELENS, "yahoo-r3": (5400, 1000, 146_000, 36_000)},
    "5.1": {
        "ml-100k": (*_MOVIELENS["ml-100k"], 0.06304),
        "ml-1m": (*_MOVIELENS["ml-1m"], 0.04189),
        "yahoo-r3": (5400, 1000, 146_000, 36_000, 0.03370),
        "yelp2018": (31_668, 38_048, 1_249_000, 312_000, 0.00130),
        "gowalla": (29_858, 40_981, 821_000, 205_000, 0.00084),
        "lastfm": (),
    },
}
"""By table and dataset. LastFM is ours."""


def sizes(table: str, quick: bool) -> Drawn:
    """The sizes of a table. E-3.D, E-4.S."""
    from workloads.data import default_data_root, load_interactions

    def count(name: str) -> tuple[float, ...]:
        split: Split = "clean" if table == "3.1" else "random" if name == "yahoo-r3" else "official"
        data = load_interactions(name, default_data_root(), split)
        pairs = len(data.train), len(data.test)
        return data.n_users, data.n_items, *pairs, sum(pairs) / (data.n_users * data.n_items)

    return size_table(_SIZES, _PRINTED[table], count)


SIZES = tuple(
    Computation(f"thesis-{number}", "Sizes of the datasets", f"thesis {source}, table {number}", "recommender",
                partial(sizes, number))
    for number, source in (("3.1", "3.5.1"), ("4.1", "4.5.1.1"), ("5.1", "5.6.1.1"))
)  # fmt: skip
"""Of these tables, the items without an interaction count, and the density is that of both parts together."""
