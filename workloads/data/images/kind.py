"""Images as a kind of data. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workloads.data.images.folders import is_class_folders, parts, read_folders
from workloads.data.images.tables import TEST, TRAIN, holds_images, read_image_tables
from workloads.data.source import Dataset, Kind, ReadOptions, SourceFile, own_dataset

if TYPE_CHECKING:
    from workloads.data.images.types import Corrupt


def is_images(path: Path) -> bool:
    """Whether a path has class folders or one or two tables of images."""
    if path.is_dir():
        tables = all((path / file).is_file() for file in (TRAIN, TEST)) and holds_images(path / TRAIN)
        return tables or is_class_folders(path)
    return path.is_file() and holds_images(path)


def own_images(name: str, path: Path) -> Dataset:
    """The dataset of images at an absolute path."""
    if path.is_file():
        reader = partial(read_image_tables, files=(path.name,))
        return own_dataset(name, "images", path.parent, (path.name,), reader)
    if (path / TRAIN).is_file():
        return own_dataset(name, "images", path, (TRAIN, TEST), read_image_tables)
    files = tuple(SourceFile(part, folder=True) for part in parts(path) or (".",))
    return Dataset(name, "a user's own", "images", read_folders, files, folder=str(path))


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Decode a dataset that has no checksums."""
    if dataset.verified:
        return
    from workloads.data.images.load import load_images

    load_images(dataset.name, root, options.size, cast("Corrupt", options.corrupt or "refuse"))


def skipped_warning(dataset: Dataset, params: Mapping[str, Any], root: Path) -> str | None:
    """A sentence about the images that ``dataset_corrupt=skip`` skips; None if there are none.

    In a dataset with checksums every image can be decoded.
    """
    if params.get("dataset_corrupt") != "skip" or dataset.verified:
        return None
    from workloads.data.images.load import load_images

    skipped = load_images(dataset.name, root, params.get("dataset_size"), "skip").skipped
    many = f"{len(skipped)} images cannot be decoded and are left out, the first of them"
    one = "1 image cannot be decoded and is left out:"
    return f"Warning: {one if len(skipped) == 1 else many} {skipped[0]}" if skipped else None


IMAGES = Kind(
    "images",
    "a folder with a sub-folder of image files for each class, or with such folders in train and test (or "
    "val); Parquet with the columns image and label, one table or train.parquet and test.parquet",
    own=((is_images, own_images),),
    check=check,  # no counts: all images would have to be decoded
)
