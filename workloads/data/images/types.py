"""What a dataset of images gives before they are decoded: names, labels, and their contents one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Content: TypeAlias = "Path | bytes | NDArray[np.uint8]"
    """An image file, its bytes, or decoded pixels (H, W, 3)."""

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


def empty_listing() -> Listing:
    """A part that the source does not have."""
    import numpy as np

    return Listing(np.empty(0, np.int64), str, tuple)


def of_arrays(pixels: NDArray[np.uint8], labels: Any, name: str) -> Listing:
    """Decoded images (n, H, W, 3), uint8, and their labels."""
    import numpy as np

    return Listing(np.asarray(labels, np.int64), lambda place: f"{name} {place}", lambda: pixels)
