"""Types of image datasets: before decoding (names, labels, a stream of contents), and as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Content: TypeAlias = "Path | bytes | NDArray[np.uint8]"
    """An image file, its bytes, or decoded pixels (H, W, 3)."""

Corrupt: TypeAlias = Literal["refuse", "skip"]

UNLABELLED = -1
"""The label of an image without a known class."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of one part. ``labels`` (n,) int64; ``name(i)`` is the name of image i in messages.

    ``contents()`` yields all n in order, and can be called repeatedly.
    """

    labels: NDArray[np.int64]
    name: Callable[[int], str]
    contents: Callable[[], Iterable[Any]]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A dataset's parts and the names of its classes. Without a test part ``test`` is empty."""

    train: Listing
    test: Listing
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pixels:
    """One part: ``images`` (n, 3, S, S) uint8, ``labels`` (n,) int64, -1 if unknown.

    ``rows``: positions of the images that could be decoded, ascending. Other positions have undefined content.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """A dataset of square RGB images. ``skipped`` names the images that could not be decoded, with the reason.

    ``test`` is empty if the source has no test part. All trials of a process share the arrays.
    """

    train: Pixels
    test: Pixels
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Height and width of the images."""
        return int(self.train.images.shape[2])


def empty_listing() -> Listing:
    """An empty part, for one that the source does not have."""
    import numpy as np

    return Listing(np.empty(0, np.int64), str, tuple)


def of_arrays(pixels: NDArray[np.uint8], labels: Any, name: str) -> Listing:
    """A listing of decoded images (n, H, W, 3), uint8, and their labels."""
    import numpy as np

    return Listing(np.asarray(labels, np.int64), lambda index: f"{name} {index}", lambda: pixels)
