"""Load images by dataset name: decoded once per machine, then memory-mapped."""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from workloads.data.conversion_cache import build_once, cache_path, check_unchanged, checked_fingerprint
from workloads.data.datasets import dataset, read
from workloads.data.files import reserve
from workloads.data.images.convert import convert, refused
from workloads.data.images.progress import Progress
from workloads.data.images.types import Corrupt, Images, Pixels
from workloads.data.source import Dataset, ReadOptions
from workloads.memory import BoundedCache

FORMAT = 2
"""Version of the layout and of the decoding, in the names of cache folders."""

_INDEX = "index.json"
_PROGRESS = "progress.json"
_CHECKED_BYTES = 4 << 30  # of larger files only the size is checked on loading


def load_images(name: str, root: Path, size: int | None = None, corrupt: Corrupt = "refuse") -> Images:
    """The images of a dataset under the data root, after :func:`~workloads.data.datasets.check`.

    The first process decodes them into the cache while others wait; later calls in one process return the same object.
    A damaged cache is rebuilt.

    Args:
        name: a name of the catalogue, or an absolute path.
        root: the data root.
        size: height and width of the result, centre-cropped if not square; None keeps the images' own, which must all
            be the same square.
        corrupt: ``refuse`` a dataset with an image that cannot be decoded, or ``skip`` such images.

    Raises:
        DataError: the dataset is unknown, of another kind, missing or damaged, or as
            :func:`~workloads.data.images.convert.convert`.
        workloads.data.CacheUnwritable: the cache cannot be written.
    """
    folder = cache_path("images", name, checked_fingerprint(name, root, "images"), f"{size or 'own'}-v{FORMAT}")
    images = _load(name, root, size, corrupt, folder)
    if images.skipped and corrupt == "refuse":  # they were skipped when the cache was written
        raise refused(images.skipped[0])
    return images


@BoundedCache
def _load(name: str, root: Path, size: int | None, corrupt: Corrupt, folder: Path) -> Images:
    if not dataset(name).files:  # a generated one is small, and generating is as fast as loading
        return convert(read(name, root), size, corrupt, lambda _part, shape: np.zeros(shape, np.uint8))
    return build_once(folder, _mapped, lambda: _write(folder, name, root, size, corrupt))


def _write(folder: Path, name: str, root: Path, size: int | None, corrupt: Corrupt) -> None:
    """Decode into a folder that is renamed when complete, one ``.npy`` file per array.

    After a kill the draft is left behind, and the next process continues it.

    Raises:
        OSError: it cannot be written; nothing is left behind.
        DataError: as :func:`~workloads.data.images.convert.convert`, or a file changed meanwhile.
    """
    source = read(name, root)
    draft = folder.with_name(f".{folder.name}.part")
    progress = _progress(draft, Path(name).name)
    draft.mkdir(parents=True, exist_ok=True)
    try:
        images = convert(source, size, corrupt, partial(_allocated, draft, progress), progress)
        check_unchanged(name, root, folder.name)
        (draft / _PROGRESS).unlink()
        for part, pixels in (("train", images.train), ("test", images.test)):
            np.save(draft / f"{part}-labels.npy", pixels.labels)
            np.save(draft / f"{part}-rows.npy", pixels.rows)
            if isinstance(pixels.images, np.memmap):
                pixels.images.flush()
        index = {
            "classes": images.classes,
            "skipped": images.skipped,
            "files": {file.name: [file.stat().st_size, _crc32(file)] for file in sorted(draft.iterdir())},
        }
        (draft / _INDEX).write_text(json.dumps(index))
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except Exception:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _progress(draft: Path, name: str) -> Progress:
    """How far an earlier process came with ``draft``, which is removed if that cannot be read."""
    try:
        progress = Progress(draft / _PROGRESS, name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        (draft / _PROGRESS).unlink()
        progress = Progress(draft / _PROGRESS, name)
    if not (draft / _PROGRESS).exists():
        shutil.rmtree(draft, ignore_errors=True)
    return progress


def _allocated(folder: Path, progress: Progress, part: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Create a memory-mapped file for the images of a part, or map the one that an earlier process has begun."""
    file = folder / f"{part}.npy"
    if progress.has(part) and shape[0]:
        begun: NDArray[np.uint8] = np.lib.format.open_memmap(file, "r+")
        if begun.shape == shape:
            return begun
        raise OSError(errno.EIO, "the array of an earlier conversion has another shape", str(file))
    if not shape[0]:  # an empty file cannot be mapped
        np.save(file, np.empty(shape, np.uint8))
        return np.empty(shape, np.uint8)
    mapped: NDArray[np.uint8] = np.lib.format.open_memmap(file, "w+", np.uint8, shape)
    with file.open("r+b") as opened:
        reserve(opened, file.stat().st_size)
    return mapped


def _mapped(folder: Path) -> Images | None:
    """Memory-map the files of :func:`_write`; None if they are missing or damaged."""
    try:
        index = json.loads((folder / _INDEX).read_text())
        for name, (size, crc32) in index["files"].items():
            file = folder / name
            if file.stat().st_size != size or (size <= _CHECKED_BYTES and _crc32(file) != crc32):
                return None
        train, test = (_pixels(folder, part) for part in ("train", "test"))
        return Images(train, test, tuple(index["classes"]), tuple(index["skipped"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a damaged one raises many kinds of errors; it is written again


def _pixels(folder: Path, part: str) -> Pixels:
    labels, rows = (np.load(folder / f"{part}-{name}.npy") for name in ("labels", "rows"))
    # Copy-on-write, although nothing writes: PyTorch warns about read-only arrays.
    return Pixels(np.load(folder / f"{part}.npy", mmap_mode="c" if len(labels) else None), labels, rows)


def _crc32(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 22):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def check(dataset: Dataset, root: Path, options: ReadOptions) -> None:
    """Decode a dataset that has no checksums."""
    load_images(dataset.name, root, options.size, cast("Corrupt", options.corrupt or "refuse"))


def skipped_warning(entry: Dataset, params: Mapping[str, Any], root: Path) -> str | None:
    """A sentence about the images that ``dataset_corrupt=skip`` skips, also of ``probe_dataset``; None without any.

    In a dataset with checksums every image can be decoded.
    """
    if params.get("dataset_corrupt") != "skip":
        return None
    size = params.get("dataset_size")
    skipped = () if entry.verified else load_images(entry.name, root, size, "skip").skipped
    other = params.get("probe_dataset")
    if other is not None and not dataset(other).verified:
        size = size or load_images(entry.name, root, None, "skip").size
        skipped = (*skipped, *load_images(other, root, size, "skip").skipped)
    skipped = tuple(dict.fromkeys(skipped))  # both may be one dataset
    many = f"{len(skipped)} images cannot be decoded and are left out, the first of them"
    one = "1 image cannot be decoded and is left out:"
    return f"Warning: {one if len(skipped) == 1 else many} {skipped[0]}" if skipped else None
