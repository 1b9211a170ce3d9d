"""Generated interactions of Gowalla's size, for benchmarks: drawn by groups and popularity.

Each user and item has one group. Most items of a user are from its own group, popular ones more often, and few users
have many. The truth is not stored: it would have a thousand times as many pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.data.draws import uniform
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parameters of the generator.

    ``own``: probability that an interaction is with an item of the user's group. ``test``: share of each user's
    interactions in the test part. A user has at least ``least`` interactions (Gowalla is a 10-core).
    """

    n_users: int = 30_000
    n_items: int = 41_000
    n_interactions: int = 1_000_000
    n_groups: int = 50
    own: float = 0.8
    least: int = 10
    test: float = 0.2
    seed: int = 30


def generate_large(sizes: Sizes) -> Interactions:
    """Draw this number of pairs without replacement and split them. Rows are ordered by user, then item.

    All draws come from the raw stream of PCG64, and only correctly rounded arithmetic is used, so the result is the
    same on every machine.

    Raises:
        ValueError: a user would have fewer items than ``least``, or more than half of all.
    """
    import numpy as np

    from workloads.data.interactions.codes import decode, distinct
    from workloads.data.interactions.splits import hold_out

    bits = np.random.PCG64(sizes.seed)
    n_users = sizes.n_users
    n_items = sizes.n_items
    # The rest of a user's items is proportional to 1 / u^(1/2), u uniform: a power law with finite mean.
    share = 1 / np.sqrt(uniform(bits, n_users) + 1e-3) - 1 / np.sqrt(1 + 1e-3)
    rest = sizes.n_interactions - sizes.least * n_users
    # fsum, since NumPy's order of addition differs between machines.
    counts = sizes.least + np.floor(share * (rest / math.fsum(share))).astype(np.int64)
    counts[: sizes.n_interactions - int(counts.sum())] += 1
    if rest < 0 or counts.max() > n_items // 2:
        raise ValueError(f"{sizes.n_interactions} interactions are too many or too few for {n_users} x {n_items}")

    codes = np.empty(0, np.int64)
    wanted = counts
    while len(codes) < sizes.n_interactions:
        users = np.repeat(np.arange(n_users), wanted)
        codes = distinct(codes, users * n_items + _items(bits, users, sizes))
        wanted = counts - np.bincount(codes // n_items, minlength=n_users)
    pairs = decode(codes, n_items)
    test = hold_out(pairs, n_users, sizes.test, sizes.seed)
    return Interactions(n_users, n_items, pairs[~test], pairs[test])


def _items(bits: np.random.PCG64, users: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
    """An item for each user: item i is in group i mod n_groups, and popular where i is small."""
    import numpy as np

    u = uniform(bits, len(users))
    items = (sizes.n_items * u * u).astype(np.int64)  # with density 1 / sqrt(i): the first items are the most popular
    group = users % sizes.n_groups
    near = items - items % sizes.n_groups + group
    return np.where((uniform(bits, len(users)) < sizes.own) & (near < sizes.n_items), near, items)


_DEFAULT = Sizes()

SYNTHETIC_1M = Dataset(
    name="synthetic-1m",
    summary="groups and popularity, 30,000 users, 41,000 items, 1,000,000 interactions: Gowalla's size, for benchmarks",
    kind="interactions",
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate_large(_DEFAULT),
)
