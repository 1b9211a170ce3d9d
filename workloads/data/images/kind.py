"""Images as a kind of data. Imports no NumPy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from workloads.data.errors import UnclearLayout
from workloads.data.images.folders import is_class_folders, parts, read_folders
from workloads.data.images.tables import TEST, TRAIN, holds_images, read_image_tables
from workloads.data.source import Dataset, Kind, SourceFile, own_dataset


def is_images(path: Path) -> bool:
    """Whether a path has class folders or one or two tables of images."""
    if path.is_dir():
        tables = all((path / file).is_file() for file in (TRAIN, TEST)) and holds_images(path / TRAIN)
        return tables or is_class_folders(path)
    return path.is_file() and holds_images(path)


def own_images(name: str, path: Path) -> Dataset:
    """The dataset of images at an absolute path.

    Raises:
        UnclearLayout: a folder has tables, and class folders too.
    """
    if path.is_file():
        reader = partial(read_image_tables, files=(path.name,))
        return own_dataset(name, "images", path.parent, (path.name,), reader)
    if (path / TRAIN).is_file():
        if folders := parts(path):
            raise UnclearLayout(
                "the folder has two layouts", file=path, got=f"{TRAIN}; and folders {' and '.join(folders)}",
                fix="Move one of them to another folder",
            )  # fmt: skip
        return own_dataset(name, "images", path, (TRAIN, TEST), read_image_tables)
    files = tuple(SourceFile(part, folder=True) for part in parts(path) or (".",))
    return Dataset(name, "a user's own", "images", read_folders, files, folder=str(path))


IMAGES = Kind(
    "images",
    "a folder with a sub-folder of image files for each class, or with such folders in train and test (or "
    "val); Parquet with the columns image and label, one table or train.parquet and test.parquet",
    own=((is_images, own_images),),
    check="workloads.data.images.load:check",
    overlap="workloads.data.overlap:images",
    slow=True,
    warning="workloads.data.images.load:skipped_warning",  # and no counts: images would be decoded for them
)
