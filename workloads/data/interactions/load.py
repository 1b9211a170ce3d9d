"""From a dataset's name to its interactions: converted once per machine, mapped once per process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.data.conversion_cache import converted, intact, place
from workloads.data.datasets import dataset
from workloads.data.interactions.arrow import FORMAT, read_interactions, write_interactions
from workloads.data.interactions.types import Interactions

if TYPE_CHECKING:
    from workloads.data.images.convert import Corrupt
    from workloads.data.interactions.variants import Split
    from workloads.data.pairs.splits import PairSplit
    from workloads.data.retrieval.types import Unknown

_KEPT = 8  # datasets a process keeps mapped


def load_interactions(name: str, root: Path, split: Split = "official", noise: float = 0.0) -> Interactions:
    """The interactions of a dataset under the data root, after :func:`~workloads.data.datasets.check`.

    The first process converts the files to Arrow in the cache while others wait; from then on the arrays are
    memory-mapped, and later calls in one process return the same object. A damaged cache file is rebuilt.

    Args:
        name: of the catalogue, or an absolute path.
        root: the data root.
        split: see :func:`~workloads.data.interactions.variants.resplit`.
        noise: interactions to inject, as a share of train; see
            :func:`~workloads.data.interactions.variants.with_noise`.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged, or does not have what the split needs.
        CacheUnwritable: the cache can not be written.
    """
    path = place("interactions", name, intact(name, root, "interactions"), f"v{FORMAT}.arrow")
    data = _load(name, root, path)
    if split == "official" and len(data.test) and not noise:
        return data
    return _variant(name, root, path, split, noise)


def check_readable(
    name: str,
    root: Path,
    split: Split | PairSplit | None = None,
    *,
    size: int | None = None,
    corrupt: Corrupt | None = None,
    unknown: Unknown | None = None,
    noise: float | None = None,
) -> None:
    """Refuse, before a worker starts, what :func:`~workloads.data.datasets.check` can not see.

    That is: a damaged line or image where there is no checksum, a split or ``noise`` that the dataset can not be given,
    and parts that nothing could be judged by. Such a dataset is converted now, as by its first reader, images to
    ``size`` and by the policy ``corrupt``, judgements by the policy ``unknown``.

    Raises:
        DataError: as :func:`load_interactions`.
        CacheUnwritable: the cache can not be written.
    """
    known = dataset(name)
    if known.kind == "interactions" and (split == "clean" or noise or not known.verified):
        from workloads.data.interactions.splits import check_parts

        data = load_interactions(name, root, "official" if split is None or split == "dev" else split, noise or 0.0)
        check_parts(data.train, data.test, [known.place(root) / source.path for source in known.files])
    if known.kind == "images" and not known.verified:
        from workloads.data.images.load import load_images

        load_images(name, root, size, corrupt or "refuse")
    if known.kind == "retrieval" and not known.verified:
        from workloads.data.retrieval.load import load_retrieval

        load_retrieval(name, root, unknown or "refuse")
    if known.kind == "graph_questions" and not known.verified:
        from workloads.data.questions.load import load_questions

        load_questions(name, root)
    if known.kind == "sentence_pairs":
        from workloads.data.pairs.splits import load_pairs

        load_pairs(name, root, "dev" if split == "dev" else "official")


def left_out(params: Mapping[str, Any], root: Path) -> str | None:
    """A sentence about the images of a run's dataset that are left out (``dataset_corrupt=skip``); None without one.

    A dataset of known checksums has none that can not be decoded.
    """
    name = params.get("dataset")
    if name is None or params.get("dataset_corrupt") != "skip" or dataset(name).verified:
        return None
    from workloads.data.images.load import load_images

    skipped = load_images(name, root, params.get("dataset_size"), "skip").skipped
    many = f"{len(skipped)} images can not be decoded and are left out, the first of them"
    one = "1 image can not be decoded and is left out:"
    return f"Warning: {one if len(skipped) == 1 else many} {skipped[0]}" if skipped else None


@lru_cache(maxsize=_KEPT)
def _variant(name: str, root: Path, path: Path, split: Split, noise: float) -> Interactions:
    # Here: they need NumPy, which most commands do not.
    from workloads.data.interactions.variants import resplit, with_noise

    data = resplit(_load(name, root, path), split, clean_from=dataset(name).clean_from)
    return with_noise(data, noise) if noise else data


@lru_cache(maxsize=_KEPT)
def _load(name: str, root: Path, path: Path) -> Interactions:
    return converted(name, root, path, read_interactions, write_interactions)
