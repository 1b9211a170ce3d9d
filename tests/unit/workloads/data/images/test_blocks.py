"""Image datasets larger than memory: order of the images, reads from the file, and memory held."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.pictures import generator
from workloads.data.images import blocks, resident
from workloads.data.images.blocks import ImageFile, block_order
from workloads.data.images.resident import ImagePart, fits_memory, prepare
from workloads.data.images.types import Images, Pixels

CPU = torch.device("cpu")
IMAGE = 3 * 4 * 4


def stored(folder: Path, count: int) -> Images:
    """Return 4 x 4 images in a memory-mapped file, with alternating classes; an image's first bytes are its number."""
    parts = []
    for name, images in (("train", count), ("test", 8)):
        pixels = np.random.default_rng(images).integers(0, 256, (images, 3, 4, 4), np.uint8)
        pixels.reshape(images, -1)[:, :4] = np.arange(images, dtype=np.uint32)[:, None].view(np.uint8)
        np.save(folder / f"{name}.npy", pixels)
        mapped = np.load(folder / f"{name}.npy", mmap_mode="c")
        parts.append(Pixels(mapped, np.arange(images) % 2, np.arange(images)))
    return Images(*parts, ("a", "b"))


def numbers(images: torch.Tensor) -> list[int]:
    """The numbers in the first bytes of images (n, 3, 4, 4)."""
    found: list[int] = images.flatten(1)[:, :4].contiguous().view(torch.int32).flatten().tolist()
    return found


@pytest.mark.parametrize(("count", "window"), [(10_000, 640), (100, 1), (1000, 10_000), (1, 64)])
def test_block_order_has_each_image_once_and_is_set_by_the_generator(count: int, window: int) -> None:
    rows = torch.arange(2 * count)[torch.randperm(2 * count, generator=generator(1))[:count].sort().values]
    order = block_order(rows, IMAGE, window, generator(0))
    assert order.sort().values.tolist() == list(range(count))
    assert torch.equal(order, block_order(rows, IMAGE, window, generator(0)))
    assert count == 1 or not torch.equal(order, block_order(rows, IMAGE, window, generator(1)))


def test_a_window_has_the_images_of_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block has 40 rows, of which 36 are in the part. Images drawn one by one would come from many more blocks."""
    rows = torch.arange(40_000)[torch.arange(40_000) % 10 != 0]
    parts = torch.split(block_order(rows, IMAGE, 640, generator(0)), 640)
    assert all(len((rows[part] // 40).unique()) <= 640 // 36 + 2 for part in parts)
    firsts = torch.stack([rows[part[:8]] for part in parts[:50]]).double()
    assert abs(firsts.mean() - 20_000) < 2_000, "blocks come from the whole file"
    assert firsts.std(1).min() > 2_000, "a batch contains images of several blocks"
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 5 * IMAGE)
    (short, *_) = torch.split(block_order(rows, IMAGE, 640, generator(0)), 640)
    assert len((rows[short] // 5).unique()) > 640 // 5


def test_nearby_images_are_read_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = stored(tmp_path, 1000).train.images
    file = ImageFile.of(images)
    assert file is not None
    assert ImageFile.of(np.zeros((1, 3, 4, 4), np.uint8)) is None
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100 * IMAGE)
    monkeypatch.setattr(blocks, "GAP_BYTES", 3 * IMAGE)
    sizes: list[int] = []
    pread = os.pread
    monkeypatch.setattr(blocks.os, "pread", lambda *given: sizes.append(given[1] // IMAGE) or pread(*given))
    cases: list[tuple[Iterable[int], list[int]]] = [
        (range(50, 250), [50, 100, 50]),
        ([7], [1]),
        ([0, 4, 8, 13], [9, 1]),
        ([999], [1]),
    ]
    for wanted, read in cases:
        rows = np.array(wanted)
        assert np.array_equal(file.read(rows), images[rows])
        assert sizes == read
        sizes.clear()
    os.truncate(file.path, file.path.stat().st_size - 1)
    with pytest.raises(ValueError, match="cannot reshape"):
        file.read(np.array([999]))


def test_part_in_a_file_equals_part_in_memory_and_holds_two_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory map is not read. The memory held depends on the window size, not on the number of images."""
    held = most = 0

    def freed(size: int) -> None:
        nonlocal held
        held -= size

    def counted(file: ImageFile, rows: NDArray[np.int64], read: Any = ImageFile.read) -> NDArray[np.uint8]:
        nonlocal held, most
        images: NDArray[np.uint8] = read(file, rows)
        weakref.finalize(images, freed, images.nbytes)
        held += images.nbytes
        most = max(most, held)
        return images

    data = stored(tmp_path, 4000)
    whole = prepare(data, 0, True, CPU)
    monkeypatch.setattr(ImageFile, "read", counted)
    split = prepare(data, 0, True, CPU, from_file=True)
    part = split.train
    assert (part.resident, whole.train.resident) == (False, True)
    order = block_order(part.rows, IMAGE, 192, generator(0))[:3584].view(-1, 32)
    for place, images in enumerate(part.stream_windows(torch.split(order, 6))):
        assert numbers(images) == part.rows[order[place]].tolist()
        assert torch.equal(images, whole.train.take(order[place]))
    assert place == len(order) - 1
    assert most == 2 * 192 * IMAGE
    assert held == 0
    for one, other in ((split.validation, whole.validation), (split.test, whole.test)):
        index = torch.randperm(len(one), generator=generator(0))
        assert torch.equal(torch.cat(list(one.stream(index.split(7)))), other.take(index))
        assert torch.equal(one.labels, other.labels)
    loaded = whole.train.load(order[0])
    assert torch.equal(loaded.take(torch.arange(32)), whole.train.take(order[0]))
    assert torch.equal(loaded.labels, whole.train.labels[order[0]])


def test_image_file_removed_while_streaming_raises_file_not_found(tmp_path: Path) -> None:
    part = prepare(stored(tmp_path, 100), 0, False, CPU, from_file=True).train
    images = part.stream_windows(torch.arange(96).view(3, 4, 8).unbind())
    assert len(next(images)) == 8
    part.file.path.unlink()  # type: ignore[union-attr]
    with pytest.raises(FileNotFoundError):
        list(images)


def test_dataset_fits_memory_if_it_fits_on_the_device_or_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stored(tmp_path, 92)  # 100 with the 8 of test
    for device, host, fits in ((200, 0, True), (199, 200, True), (199, 199, False)):
        monkeypatch.setattr(resident, "process_bytes", lambda on, d=device, h=host: IMAGE * (h if on == CPU else d))
        assert fits_memory(data, torch.device("cuda")) is fits


def test_images_in_memory_are_streamed_without_a_file() -> None:
    images = np.arange(40 * IMAGE, dtype=np.uint8).reshape(40, 3, 4, 4)
    pixels = Pixels(images, np.arange(40) % 2, np.arange(40))
    part: ImagePart = prepare(Images(pixels, pixels, ("a", "b")), 0, False, CPU, from_file=True).train
    windows = torch.randperm(40, generator=generator(0)).view(2, 4, 5)
    assert torch.equal(torch.cat(list(part.stream_windows(windows))), torch.from_numpy(images)[windows.flatten()])
