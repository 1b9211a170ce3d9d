"""Read CIFAR-10, CIFAR-100, STL-10 and Tiny ImageNet from their archives.

The archives are those that torchvision downloads. They need not be unpacked.
"""

from __future__ import annotations

import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from workloads.data.cache import cache_dir
from workloads.data.errors import DataError
from workloads.data.images.types import UNLABELLED, ImageSource, Listing, of_arrays
from workloads.data.source import Dataset, SourceFile

_CIFAR = "https://www.cs.toronto.edu/~kriz"
_COPIED_BYTES = 1 << 20


def read_cifar(folder: Path, archive: str, train: tuple[str, ...], test: str, meta: str, label: str) -> ImageSource:
    """Read the Python version of CIFAR: batches of rows of 3,072 bytes, one plane per channel.

    Args:
        train: members of the archive with the train part.
        test: the member with the test part.
        meta: the member with the class names.
        label: key of the labels: ``label`` or ``fine_label``.

    Raises:
        DataError: the archive is damaged.
    """
    import numpy as np

    wanted = (*train, test, meta)
    with _archive(folder / archive) as members:
        loaded = {name: _Plain(file, encoding="latin1").load() for name, file in members if name in wanted}
        if missing := set(wanted) - set(loaded):
            raise KeyError(min(missing))

        def part(members: tuple[str, ...], name: str) -> Listing:
            rows = np.concatenate([loaded[member]["data"] for member in members])
            labels = [number for member in members for number in loaded[member][f"{label}s"]]
            return of_arrays(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, f"{name} image")

        return ImageSource(part(train, "train"), part((test,), "test"), tuple(loaded[meta][f"{label}_names"]))


def read_stl10(folder: Path) -> ImageSource:
    """Read STL-10 (Coates et al., AISTATS 2011). Train has the 5,000 labelled and 100,000 unlabelled images.

    Raises:
        DataError: the archive is damaged.
    """
    import numpy as np

    with _archive(folder / "stl10_binary.tar.gz") as members:
        arrays = {Path(name).name: _mapped(file) for name, file in members if "/" in name}

        def pixels(name: str) -> Any:
            return arrays[f"{name}_X.bin"].reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)  # column by column

        names = bytes(arrays["class_names.txt"]).decode().split()
        train, unlabelled, test = (pixels(name) for name in ("train", "unlabeled", "test"))
        labels = [arrays[f"{name}_y.bin"].astype(np.int64) - 1 for name in ("train", "test")]
        first = np.append(labels[0], np.full(len(unlabelled), UNLABELLED))
        return ImageSource(
            Listing(first, "train image {}".format, lambda: (image for part in (train, unlabelled) for image in part)),
            of_arrays(test, labels[1], "test image"),
            tuple(names),
        )


def read_tiny_imagenet(folder: Path) -> ImageSource:
    """Read Tiny ImageNet (Le and Yang, 2015). Its validation part is our test part, since its test part has no labels.

    Raises:
        DataError: the archive is damaged.
    """
    import numpy as np

    archive = folder / "tiny-imagenet-200.zip"
    root = "tiny-imagenet-200"
    with _explained(archive), zipfile.ZipFile(archive) as opened:
        classes = tuple(sorted(opened.read(f"{root}/wnids.txt").decode().split()))
        number = {name: index for index, name in enumerate(classes)}
        names = sorted(name for name in opened.namelist() if name.endswith(".JPEG"))
        train = [name for name in names if name.startswith(f"{root}/train/")]
        labels = [number[name.split("/")[2]] for name in train]
        lines = opened.read(f"{root}/val/val_annotations.txt").decode().splitlines()
        judged = [line.split("\t")[:2] for line in lines]
        test = [f"{root}/val/images/{name}" for name, _ in judged]
        test_labels = [number[name] for _, name in judged]
    return ImageSource(
        Listing(np.array(labels), train.__getitem__, partial(_members, archive, train)),
        Listing(np.array(test_labels), test.__getitem__, partial(_members, archive, test)),
        classes,
    )


class _Plain(pickle.Unpickler):
    """Unpickler restricted to arrays, text and numbers."""

    _ALLOWED = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype")}
        | {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _mapped(file: IO[bytes]) -> Any:
    """Bytes of a member, memory-mapped from a temporary file that is removed with the array."""
    import numpy as np

    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_dir()) as copy:
        while chunk := file.read(_COPIED_BYTES):
            copy.write(chunk)
        copy.flush()
        return np.memmap(copy, np.uint8, mode="r")


def _members(archive: Path, names: list[str]) -> Iterator[bytes]:
    with _explained(archive), zipfile.ZipFile(archive) as opened:
        for name in names:
            yield opened.read(name)


@contextmanager
def _archive(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Files of a compressed tar archive by name, in the archive's order."""
    with _explained(path), tarfile.open(path, "r|gz") as opened:
        yield ((member.name, file) for member in opened if (file := opened.extractfile(member)) is not None)


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Convert the errors of a damaged archive to DataError."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError, LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the archive is damaged or another one ({error})", file=archive) from None


def _dataset(name: str, summary: str, file: SourceFile, reader: Any) -> Dataset:
    return Dataset(name=name, summary=summary, kind="images", reader=reader, files=(file,))


CIFAR_10 = _dataset(
    "cifar-10",
    "CIFAR-10, 10 classes, 50,000 + 10,000 images of 32 x 32",
    SourceFile(
        "cifar-10-python.tar.gz",
        size=170_498_071,
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        url=f"{_CIFAR}/cifar-10-python.tar.gz",
    ),
    partial(
        read_cifar,
        archive="cifar-10-python.tar.gz",
        train=tuple(f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)),
        test="cifar-10-batches-py/test_batch",
        meta="cifar-10-batches-py/batches.meta",
        label="label",
    ),
)

CIFAR_100 = _dataset(
    "cifar-100",
    "CIFAR-100, 100 classes, 50,000 + 10,000 images of 32 x 32",
    SourceFile(
        "cifar-100-python.tar.gz",
        size=169_001_437,
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        url=f"{_CIFAR}/cifar-100-python.tar.gz",
    ),
    partial(
        read_cifar,
        archive="cifar-100-python.tar.gz",
        train=("cifar-100-python/train",),
        test="cifar-100-python/test",
        meta="cifar-100-python/meta",
        label="fine_label",
    ),
)

STL_10 = _dataset(
    "stl-10",
    "STL-10, 10 classes, 5,000 + 100,000 unlabelled + 8,000 images of 96 x 96",
    SourceFile(
        "stl10_binary.tar.gz",
        size=2_640_397_119,
        sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        url="https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    ),
    read_stl10,
)

TINY_IMAGENET = _dataset(
    "tiny-imagenet",
    "Tiny ImageNet, 200 classes, 100,000 + 10,000 images of 64 x 64",
    SourceFile(
        "tiny-imagenet-200.zip",
        size=248_100_043,
        sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        url="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ),
    read_tiny_imagenet,
)
