"""Load interactions by dataset name: converted once per machine, memory-mapped once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workloads.data.conversion_cache import build_once, cache_path, checked_fingerprint, load_or_convert
from workloads.data.datasets import dataset, fingerprint
from workloads.data.interactions.arrow import FORMAT, read_interactions, write_interactions
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, ReadOptions
from workloads.memory import BoundedCache

if TYPE_CHECKING:
    from workloads.data.interactions.variants import Split

CACHED_FROM = 2**22
"""Number of interactions from which another split of a dataset is written to the cache."""

VARIANTS = 2
"""Version of the splits and of the noise, in the names of these files."""


def load_interactions(
    name: str, root: Path, split: Split = "official", noise: float = 0.0, min_rating: float | None = None
) -> Interactions:
    """The interactions of a dataset under the data root, after :func:`~workloads.data.datasets.check`.

    The first process converts the files to Arrow in the cache while others wait. Then the arrays are memory-mapped, and
    later calls in one process return the same object. A damaged cache file is rebuilt.

    Args:
        name: a name of the catalogue, or an absolute path.
        root: the data root.
        split: see :func:`~workloads.data.interactions.variants.resplit`.
        noise: number of interactions to inject, as a share of train; see
            :func:`~workloads.data.interactions.variants.with_noise`.
        min_rating: interactions with a lower rating are left out before anything is split; None: none are. See
            :func:`~workloads.data.interactions.variants.rated_from`.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged, or does not have what the split or
            ``min_rating`` needs.
        CacheUnwritable: the cache cannot be written.
    """
    content = checked_fingerprint(name, root, "interactions")
    path = cache_path("interactions", name, content, f"v{FORMAT}.arrow")
    data: Interactions = load_or_convert(name, root, path, read_interactions, write_interactions)
    if split == "official" and len(data.test) and not noise and min_rating is None:
        return data
    ending = f"v{FORMAT}-{split}-{noise}{_rated(min_rating, '-')}-v{VARIANTS}.arrow"
    return _variant(name, data, split, noise, min_rating, cache_path("interactions", name, content, ending))


def variant_identity(name: str, root: Path, split: Split, noise: float, min_rating: float | None = None) -> str:
    """A text that is another one wherever :func:`load_interactions` may return other arrays."""
    return f"{fingerprint(name, root)} v{FORMAT} v{VARIANTS} {split} {noise}{_rated(min_rating, ' ')}"


def _rated(min_rating: float | None, separator: str) -> str:
    return "" if min_rating is None else f"{separator}from{separator}{min_rating}"


@BoundedCache
def _variant(
    name: str, data: Interactions, split: Split, noise: float, min_rating: float | None, path: Path
) -> Interactions:
    """A dataset otherwise split, without low ratings or with noise; of a large one made once a node, at ``path``."""
    # Imported here: they need NumPy, which most commands do not.
    from workloads.data.interactions.variants import rated_from, resplit, with_noise

    def made() -> Interactions:
        chosen = data if min_rating is None else rated_from(data, min_rating)
        divided = resplit(chosen, split, clean_from=dataset(name).clean_from)
        return with_noise(divided, noise) if noise else divided

    if len(data.train) + len(data.test) < CACHED_FROM:
        return made()
    return build_once(path, read_interactions, lambda: write_interactions(path, made()))


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Check that the dataset supports the options, and that its parts have evaluable data."""
    from workloads.data.interactions.splits import check_parts

    split = cast("Split", "official" if options.split in (None, "dev") else options.split)
    data = load_interactions(dataset.name, root, split, options.noise or 0.0, options.min_rating)
    check_parts(data.train, data.test, [dataset.folder_in(root) / source.path for source in dataset.files_in(root)])


def counts(name: str, root: Path) -> Mapping[str, int]:
    """Users, items and interactions; the first call on a machine converts the dataset."""
    data = load_interactions(name, root)
    return {"users": data.n_users, "items": data.n_items, "interactions": len(data.train) + len(data.test)}
