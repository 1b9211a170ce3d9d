"""Images before they are decoded (names, labels, contents one after the other), and as arrays."""

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
"""The label of an image of which no class is known."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of one part. ``labels`` (n,) int64; ``name(i)`` is what image i is called in a message.

    ``contents()`` yields the n of them in order, and can be called again.
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
    """One part: ``images`` (n, 3, S, S) uint8, ``labels`` (n,) int64, -1 where no class is known.

    ``rows``: the places of the images that could be decoded, ascending; what lies at the others is no image.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """A dataset of square RGB images. ``skipped`` names the images that could not be decoded, with the reason.

    Where the source has no test part ``test`` is empty. The arrays are shared by all trials of a process.
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
    """A part that the source does not have."""
    import numpy as np

    return Listing(np.empty(0, np.int64), str, tuple)


def of_arrays(pixels: NDArray[np.uint8], labels: Any, name: str) -> Listing:
    """Decoded images (n, H, W, 3), uint8, and their labels."""
    import numpy as np

    return Listing(np.asarray(labels, np.int64), lambda index: f"{name} {index}", lambda: pixels)
