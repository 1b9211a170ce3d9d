"""A folder with a sub-folder of image files for each class, as torchvision's ImageFolder reads it.

The class folders are in the folder itself, or in its parts ``train`` and ``test``. If ``test`` is missing or has no
class of train, ``val`` is the test part, as is usual for ImageNet, whose own test part has no labels. Files and folders
whose names begin with a dot, such as thumbnails, are no part of the dataset.
"""

from __future__ import annotations

from pathlib import Path

from workloads.data.errors import DataError
from workloads.data.files import files_below
from workloads.data.images.types import ImageSource, Listing, empty_listing

ENDS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of image files; torchvision's list."""

_TESTS = ("test", "val")
_NOT_HIDDEN = ("[!.]*", "[!.]*/[!.]*")  # in a folder, and one deeper


def parts(folder: Path) -> tuple[str, ...]:
    """The parts of the folder; empty if the class folders are in the folder itself."""
    tests = [test for test in _TESTS if (folder / test).is_dir()]
    if not tests or not (folder / "train").is_dir():
        return ()
    if len(tests) > 1:
        classes = {path.name for path in _subfolders(folder / "train")}
        tests.sort(key=lambda test: classes.isdisjoint(path.name for path in _subfolders(folder / test)))
    return ("train", tests[0])


def is_class_folders(folder: Path) -> bool:
    """Whether at least half of the class folders in a folder, or in its train part, contain images, directly or one
    folder deeper. Images elsewhere in a folder of other data, such as ``train.csv``, do not count."""
    divided = parts(folder)
    try:
        if not divided and any(folder.glob("train.*")):
            return False
        classes = _subfolders(folder / "train" if divided else folder)
    except OSError:
        return False
    holding = sum(any(_is_image(file) for form in _NOT_HIDDEN for file in below.glob(form)) for below in classes)
    return 0 < len(classes) <= 2 * holding


def read_folders(folder: Path) -> ImageSource:
    """List the image files of each class. Ignores other files.

    Raises:
        DataError: there is no class, a class without images, or one that only the test part has; a link leads to no
            file; or the folder has a part train without a test part.
    """
    train, *tests = [folder / part for part in parts(folder)] or [folder]
    if not tests and _is_part(folder / "train"):
        raise DataError(
            "the part train has no test part", file=folder,
            got=", ".join(path.name for path in _subfolders(folder)), expected=f"train and {' or '.join(_TESTS)}",
            fix=f"Name the test part so, or use {folder / 'train'} to have one drawn",
        )  # fmt: skip
    classes = _classes(train)
    numbers = {name: number for number, name in enumerate(classes)}
    listed = _listing(train, classes, numbers)
    if not tests:
        return ImageSource(listed, empty_listing(), classes)
    judged = _classes(tests[0])
    if strange := sorted(set(judged) - set(classes)):
        raise DataError(
            "the test part has a class that train does not have", file=tests[0] / strange[0],
            expected=f"the classes of {train}",
        )  # fmt: skip
    return ImageSource(listed, _listing(tests[0], judged, numbers), classes)


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(path.name for path in _subfolders(folder))
    if not names:
        raise DataError("the folder holds no class", file=folder, expected="a sub-folder of images for each class")
    return names


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_part(folder: Path) -> bool:
    """Whether a folder has several class folders and no images of its own, which a class named train has."""
    return folder.is_dir() and len(_subfolders(folder)) > 1 and not any(map(_is_image, folder.iterdir()))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDS and path.is_file()


def _listing(folder: Path, classes: tuple[str, ...], numbers: dict[str, int]) -> Listing:
    import numpy as np

    by_class: dict[str, list[Path]] = {name: [] for name in classes}
    for file in files_below(folder, broken=True):  # what the digest is of, if no link is broken
        name = file.parts[len(folder.parts)]
        if name in by_class and file.suffix.lower() in ENDS:
            if not file.exists():
                fix = "Fetch the file, or remove the link"
                raise DataError("the link leads to no file", file=file, got=str(file.readlink()), fix=fix)
            by_class[name].append(file)
    files: list[Path] = []
    labels: list[int] = []
    for name, own in by_class.items():
        if not own:
            expected = f"files that end in {', '.join(ENDS)}"
            raise DataError("the class has no image", file=folder / name, expected=expected)
        files += own
        labels += [numbers[name]] * len(own)
    return Listing(np.array(labels, np.int64), lambda index: str(files[index]), lambda: files)
