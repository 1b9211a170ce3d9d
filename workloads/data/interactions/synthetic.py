"""Generated interactions with planted preferences: the items that a user truly likes are known.

Implicit feedback missing not at random (Schnabel et al., "Recommendations as Treatments", ICML 2016): a user likes the
items with the highest affinity in a low-rank space. Only exposed items are observed, and popular items are exposed more
often. A liked item that was not exposed is a false negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.data.draws import uniform
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Planted:
    """Parameters of the generator.

    ``rank``: dimension of the affinity space. ``liked``: smallest and largest share of the items that a user likes.
    ``exposure``: probability that the most popular item is exposed; at popularity rank r it is
    exposure / (1 + r / (half n_items)), so ``half`` is the share of the catalogue at which it is halved. ``test``:
    share of each user's observed items in the test part.
    """

    n_users: int = 600
    n_items: int = 400
    rank: int = 6
    liked: tuple[float, float] = (0.1, 0.45)
    exposure: float = 0.95
    half: float = 0.25
    test: float = 0.2
    seed: int = 20


def generate(planted: Planted) -> Interactions:
    """Draw affinities, liked sets, exposure and split.

    All draws come from the raw stream of PCG64 and affinities are sums of integers, so the result is the same on every
    machine and with every version of NumPy. Rows are ordered by user, then item.
    """
    import numpy as np

    from workloads.data.interactions.splits import hold_out

    bits = np.random.PCG64(planted.seed)
    n_users = planted.n_users
    n_items = planted.n_items
    affinity = _bell(bits, n_users, planted.rank) @ _bell(bits, n_items, planted.rank).T

    least, most = planted.liked
    n_liked = (n_items * (least + (most - least) * uniform(bits, n_users) ** 2)).astype(np.int64)
    threshold = np.sort(affinity, axis=1)[np.arange(n_users), n_items - np.maximum(n_liked, 1)]
    truth = affinity >= threshold[:, None]

    popularity_rank = np.argsort(bits.random_raw(n_items))
    exposure = planted.exposure / (1 + popularity_rank / (planted.half * n_items))
    observed = truth & (uniform(bits, n_users, n_items) < exposure)

    pairs = np.argwhere(observed).astype(np.int32)
    test = hold_out(pairs, n_users, planted.test, planted.seed)
    return Interactions(n_users, n_items, pairs[~test], pairs[test], truth=truth)


def _bell(bits: np.random.PCG64, *shape: int) -> NDArray[np.int64]:
    """Near-normal integers of mean 0: sums of four centred 16-bit integers (Irwin-Hall)."""
    quarters: NDArray[Any] = bits.random_raw(shape).view("uint16").reshape(*shape, 4)
    total: NDArray[np.int64] = quarters.sum(axis=-1, dtype="int64")
    return total - 2 * 0xFFFF


_DEFAULT = Planted()

SYNTHETIC = Dataset(
    name="synthetic",
    summary="planted preferences, 600 users, 400 items, 20,669 interactions, true false negatives known",
    kind="interactions",
    version=f"1 {_DEFAULT}",
    reader=lambda _folder: generate(_DEFAULT),
)
