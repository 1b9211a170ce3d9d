"""A folder with a sub-folder of image files for each class, as torchvision's ImageFolder reads it.

Either the classes lie in the folder itself, or in its parts ``train`` and ``test`` (or ``val``, which is then the test
part, as ImageNet's is in the literature).
"""

from __future__ import annotations

from pathlib import Path

from workloads.data.errors import DataError
from workloads.data.images.source import ImageSource, Listing, empty_listing

ENDS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Of the names of image files; torchvision's list."""

_TESTS = ("test", "val")


def parts(folder: Path) -> tuple[str, ...]:
    """The parts that the folder has; none where the classes lie in itself."""
    tests = [test for test in _TESTS if (folder / test).is_dir()]
    return ("train", tests[0]) if tests and (folder / "train").is_dir() else ()


def read_folders(folder: Path) -> ImageSource:
    """List the image files below each class; other files are left alone.

    Raises:
        DataError: there is no class, a class without images, or one that only the test part has.
    """
    train, *tests = [folder / part for part in parts(folder)] or [folder]
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
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError("the folder holds no class", file=folder, expected="a sub-folder of images for each class")
    return tuple(names)


def _listing(folder: Path, classes: tuple[str, ...], numbers: dict[str, int]) -> Listing:
    import numpy as np

    files: list[Path] = []
    labels: list[int] = []
    for name in classes:
        own = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDS and path.is_file())
        if not own:
            expected = f"files that end in {', '.join(ENDS)}"
            raise DataError("the class has no image", file=folder / name, expected=expected)
        files += own
        labels += [numbers[name]] * len(own)
    return Listing(np.array(labels, np.int64), lambda place: str(files[place]), lambda: files)
