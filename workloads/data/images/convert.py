"""Decode images into arrays in several threads, and list those that cannot be decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.cpus import usable_cpus
from workloads.data.errors import DataError
from workloads.data.images.decode import Undecodable, decode, square
from workloads.data.images.progress import Progress
from workloads.data.images.types import Corrupt, Images, ImageSource, Listing, Pixels

_BLOCK = 64  # images in one task of a thread


def convert(
    source: ImageSource,
    size: int | None,
    corrupt: Corrupt,
    allocate: Callable[[str, tuple[int, ...]], NDArray[np.uint8]],
    progress: Progress | None = None,
) -> Images:
    """Decode a dataset.

    Args:
        source: the images.
        size: height and width of the result; None keeps the images' own, which must all be the same square.
        corrupt: ``refuse`` or ``skip`` images that cannot be decoded.
        allocate: returns the array for a part, ``train`` or ``test``, with a shape.
        progress: how much of the arrays an earlier process has filled.

    Raises:
        DataError: an image cannot be decoded and is not skipped, no image can be decoded, or sizes differ while
            ``size`` is None.
    """
    side = size or _own_size(source.train)
    progress = progress or Progress()
    parts: dict[str, Pixels] = {}
    skipped: list[str] = []
    for part, listing in (("train", source.train), ("test", source.test)):
        images = allocate(part, (len(listing), 3, side, side))
        own = progress.begin(part, len(listing))
        faults = own.faults
        for count, more in _decoded(listing, images, own=size is None, start=own.done):
            progress.advance(part, images, count, more)
            if faults and corrupt == "refuse":
                raise refused(_named(listing, faults)[0])
        progress.save(images)
        skipped += _named(listing, faults)
        kept = np.delete(np.arange(len(listing)), sorted(faults))
        if len(listing) and not len(kept):
            raise DataError(f"no image of the {part} part can be decoded", got=_named(listing, faults)[0])
        parts[part] = Pixels(images, listing.labels, kept)
    return Images(parts["train"], parts["test"], source.classes, tuple(skipped))


def refused(fault: str) -> DataError:
    """The error about an image that cannot be decoded."""
    fix = "Correct or remove it, or set dataset_corrupt=skip to go on without such images"
    return DataError("an image cannot be decoded", got=fault, fix=fix)


def _named(listing: Listing, faults: dict[int, str]) -> list[str]:
    return [f"{listing.name(index)} ({faults[index]})" for index in sorted(faults)]


def _own_size(listing: Listing) -> int:
    """Side of the first image that can be decoded."""
    fault = "an empty part"
    for index, content in enumerate(listing.contents()):
        try:
            width, height = decode(content).size
        except Undecodable as error:
            if index == 0:
                fault = f"{listing.name(0)} ({error})"
            continue
        if width != height:
            raise _several_sizes(listing, index, width, height, "a square")
        return width
    raise DataError("no image of the train part can be decoded", got=fault)


def _several_sizes(listing: Listing, index: int, width: int, height: int, expected: str) -> DataError:
    return DataError(
        "the images are not squares of one size", got=f"{width} x {height} pixels in {listing.name(index)}",
        expected=expected, fix="Set dataset_size to the height and width to bring them to",
    )  # fmt: skip


def _decoded(
    listing: Listing, images: NDArray[np.uint8], own: bool, start: int
) -> Iterator[tuple[int, dict[int, str]]]:
    """Fill ``images`` from ``start`` on, in several threads (PIL releases the GIL).

    Yields, block after block, the number of its images, and position and error of each failure.
    """
    workers = usable_cpus()
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[int, dict[int, str]]]] = deque()
        for first, block in _blocks(listing.contents(), start):
            waiting.append(pool.submit(_decode_block, listing, images, own, first, block))
            if len(waiting) > 2 * workers:  # at most this many are in memory at once
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _blocks(contents: Iterable[Any], first: int) -> Iterator[tuple[int, list[Any]]]:
    remaining = islice(contents, first, None)
    while block := list(islice(remaining, _BLOCK)):
        yield first, block
        first += len(block)


def _decode_block(
    listing: Listing, images: NDArray[np.uint8], own: bool, first: int, block: list[Any]
) -> tuple[int, dict[int, str]]:
    faults: dict[int, str] = {}
    side = images.shape[2]
    for index, content in enumerate(block, first):
        try:
            image = decode(content)
        except Undecodable as error:
            faults[index] = str(error)
            continue
        if own and image.size != (side, side):
            raise _several_sizes(listing, index, *image.size, f"{side} x {side}, as the first image has")
        images[index] = square(image, side)
    return len(block), faults
