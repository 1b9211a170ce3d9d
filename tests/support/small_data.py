"""Small datasets in files, for tests that train many times."""

from __future__ import annotations

import atexit
import csv
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from workloads.data import load_interactions
from workloads.data.pairs.synthetic import Planted, generate


@cache
def small_pairs() -> str:
    """The folder of 160 + 40 + 40 generated sentence pairs, the same for all tests of a process."""
    folder = _folder()
    pairs = generate(Planted(train=160, validation=40, test=40))
    for name, part in (("train", pairs.train), ("validation", pairs.validation), ("test", pairs.test)):
        assert part is not None
        _write(folder / f"{name}.csv", ("sentence1", "sentence2", "score"), zip(part.first, part.second, part.scores))
    return str(folder)


@cache
def small_interactions() -> str:
    """The folder of the generated interactions of users 0 to 99, the same for all tests of a process."""
    folder = _folder()
    whole = load_interactions("synthetic", Path())
    for name, pairs in (("train", whole.train), ("test", whole.test)):
        _write(folder / f"{name}.csv", ("user", "item"), pairs[pairs[:, 0] < 100].tolist())
    return str(folder)


def _write(file: Path, names: tuple[str, ...], rows: Iterable[Sequence[object]]) -> None:
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(names)
        table.writerows(rows)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
