"""A user's own images, by path: class folders, or Parquet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from workloads.data.images.folders import is_class_folders, parts, read_folders
from workloads.data.images.tables import TEST, TRAIN, holds_images, read_image_tables
from workloads.data.images.types import ImageSource
from workloads.data.source import Dataset, SourceFile


def is_images(path: Path) -> bool:
    """Whether a table of images, two of them, or class folders lie at a path."""
    if path.is_dir():
        tables = all((path / file).is_file() for file in (TRAIN, TEST)) and holds_images(path / TRAIN)
        return tables or is_class_folders(path)
    return path.is_file() and holds_images(path)


def own_images(name: str, path: Path) -> Dataset:
    """The dataset of images at an absolute path."""
    if path.is_file():
        reader = partial(read_image_tables, files=(path.name,))
        return _own(name, path.parent, (SourceFile(path.name),), reader)
    if (path / TRAIN).is_file():
        return _own(name, path, (SourceFile(TRAIN), SourceFile(TEST)), read_image_tables)
    files = tuple(SourceFile(part, folder=True) for part in parts(path) or (".",))
    return _own(name, path, files, read_folders)


def _own(name: str, folder: Path, files: tuple[SourceFile, ...], reader: Callable[[Path], ImageSource]) -> Dataset:
    return Dataset(
        name=name,
        summary="a user's own",
        kind="images",
        version="1",
        reader=reader,
        files=files,
        folder=str(folder),
    )
