"""Test examples that also are in the training part: equal ones, and near duplicates of texts and images.

Texts are compared without case, punctuation and blanks, images by a difference hash of 64 bits: the signs of the
differences between neighbours of the image at 9 x 8 pixels of grey.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data.datasets import read
from workloads.data.errors import DataError
from workloads.data.images.types import Pixels
from workloads.data.normal_text import normal_text
from workloads.data.questions import types as questions_types
from workloads.data.retrieval import types as retrieval_types
from workloads.data.source import Overlap

CHUNK = 1024
"""Images hashed at once."""


def interactions(name: str, root: Path) -> Overlap:
    """Test interactions that are in train: pairs of user and item. Readers of own tables refuse them."""
    data = read(name, root)
    train, test = (list(map(tuple, part.tolist())) for part in (data.train, data.test))
    return _overlap(train, test, "interactions", lambda number: "user {}, item {}".format(*test[number]))


def pairs(name: str, root: Path) -> Overlap:
    """Test pairs of sentences that are in train, in either order."""
    data = read(name, root)
    if data.test is None:
        return Overlap(0, 0, "pairs")
    texts = [list(zip(part.first, part.second, strict=True)) for part in (data.train, data.test)]
    train, test = ([frozenset(map(normal_text, both)) for both in part] for part in texts)
    return _overlap(train, test, "pairs of sentences", lambda number: " | ".join(texts[1][number]))


def queries(name: str, root: Path) -> Overlap:
    """Test queries whose text is that of a training query."""
    data = read(name, root)
    texts = list(map(str, data.queries))
    train, test = (
        [text for text, part in zip(texts, data.parts, strict=True) if part == retrieval_types.PARTS.index(name)]
        for name in ("train", "test")
    )
    return _overlap(map(normal_text, train), list(map(normal_text, test)), "queries", lambda number: repr(test[number]))


def questions(name: str, root: Path) -> Overlap:
    """Test questions with text and topic of a training question."""
    data = read(name, root)
    train, test = (
        [
            (normal_text(text), int(topic))
            for text, topic, part in zip(data.texts, data.topic, data.part, strict=True)
            if part == questions_types.PARTS.index(name)
        ]
        for name in ("train", "test")
    )
    return _overlap(train, test, "questions", lambda number: repr(test[number][0]))


def images(name: str, root: Path) -> Overlap:
    """Test images with the difference hash of a training image. Images of one colour are left out.

    Raises:
        DataError: an image cannot be decoded.
    """
    from workloads.data.images.load import load_images

    try:
        data = load_images(name, root)
    except DataError:  # of several sizes
        data = load_images(name, root, size=32)
    train, test = (difference_hashes(part).tolist() for part in (data.train, data.test))
    return _overlap({*train} - {0}, test, "images", lambda number: f"test image {number}")


def difference_hashes(part: Pixels) -> NDArray[np.uint64]:
    """Difference hashes (n,) of the decoded images of a part."""
    hashes = np.zeros(len(part.rows), np.uint64)
    size = part.images.shape[-1]
    columns, rows = (np.arange(n) * size // n for n in (9, 8))
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for start in range(0, len(hashes), CHUNK):
        grey = part.images[part.rows[start : start + CHUNK]].mean(axis=1, dtype=np.float32)
        small = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)
        small /= np.diff(np.append(columns, size)).clip(1)  # below 9 pixels, columns repeat
        bits = (small[:, :, 1:] > small[:, :, :-1]).reshape(len(grey), 64)
        hashes[start : start + CHUNK] = (bits * weights).sum(axis=1, dtype=np.uint64)
    return hashes


def _overlap(train: Iterable[Hashable], test: Sequence[Hashable], unit: str, show: Callable[[int], str]) -> Overlap:
    """``show`` describes the test example of a number."""
    known = set(train)
    found = [number for number, one in enumerate(test) if one in known]
    return Overlap(len(found), len(test), unit, show(found[0]) if found else None)
