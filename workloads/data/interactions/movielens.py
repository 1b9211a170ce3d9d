"""MovieLens-100K and MovieLens-1M. Every rating counts as a positive.

Harper and Konstan, "The MovieLens Datasets", ACM TiiS 5(4), 2015. ``ml-100k`` is the split of Liu and Wang,
"Bayesian Negative Sampling for Recommendation", ICDE 2023 (80,000 and 20,000 ratings, per user at random), which
numbers users and items by their first appearance in ``u.data``; ``ml-100k-raw`` and ``ml-1m`` are the files of
GroupLens: ids, ratings and times, without a split. ``ml-1m`` may also be a table without times. Ids without a rating
keep their numbers (ml-1m: 3,952 items, 3,706 rated), as in the counts of the source document.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.data.errors import DataError, line_error
from workloads.data.files import content, plain_or_gz
from workloads.data.interactions.ratings import RatingColumns, check_disjoint, read_ratings
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, SourceFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPLIT = RatingColumns("user", "item", "rating", n_users=943, n_items=1682, lowest=1, highest=5)
_100K = replace(_SPLIT, timestamp="timestamp", separator="\t", header=False, first=1)
_1M = replace(_100K, n_users=6040, n_items=3952, separator="::")
_1M_UNTIMED = replace(_1M, item="movie", timestamp="", separator=",", header=True)

_TRAIN, _TEST = "100k_train.csv", "100k_test.csv"
_RATINGS, _UNTIMED = "ratings.dat", "ratings.csv"
_BNS = "https://raw.githubusercontent.com/liubin06/BNS/854e96181a1516ea4057c8e4594f582f15f5a910/BNS_MF"
_GROUPLENS = "https://files.grouplens.org/datasets/movielens"


def read_ml_100k(folder: Path) -> Interactions:
    """Read the two files of the split.

    Raises:
        DataError: a file is damaged, or a pair is in both.
    """
    train = read_ratings(folder / _TRAIN, _SPLIT)
    test = read_ratings(folder / _TEST, _SPLIT)
    check_disjoint(folder / _TRAIN, train, folder / _TEST, test, _SPLIT)
    return Interactions(_SPLIT.n_users, _SPLIT.n_items, train.pairs, test.pairs, train.ratings, test.ratings)


def read_unsplit(folder: Path, file: str, columns: RatingColumns) -> Interactions:
    """Read a file of ratings, with times if it has them. All of it is train.

    Raises:
        DataError: the file is damaged.
    """
    import numpy as np

    pairs, ratings, times = read_ratings(folder / file, columns)
    users, items = (np.arange(1, count + 1) for count in (columns.n_users, columns.n_items))
    none = np.empty((0, 2), np.int32), np.empty(0, np.float32), None if times is None else np.empty(0, np.int64)
    return Interactions(
        columns.n_users, columns.n_items, pairs, none[0], ratings, none[1],
        train_times=times, test_times=none[2], user_ids=users, item_ids=items,
    )  # fmt: skip


def read_ml_1m(folder: Path) -> Interactions:
    """Read ``ratings.dat``, or, where it is missing, ``ratings.csv``: the same ratings without their times.

    Raises:
        DataError: the file is damaged.
    """
    timed = plain_or_gz(folder / _RATINGS).exists() or not plain_or_gz(folder / _UNTIMED).exists()
    return read_unsplit(folder, *((_RATINGS, _1M) if timed else (_UNTIMED, _1M_UNTIMED)))


def _occupations(folder: Path, file: str, separator: str, n_users: int) -> NDArray[np.int32]:
    """Occupation of each user, in the order of user ids. Occupations are numbered alphabetically."""
    import numpy as np

    users = plain_or_gz(folder / file)
    lines = content(users).decode("latin-1").splitlines()
    fields = [line.split(separator) for line in lines]
    for number, (line, columns) in enumerate(zip(lines, fields), 1):
        if len(columns) != 5 or columns[0] != str(number):
            raise line_error("the line is not a user", users, number, line, f"5 fields, the first of them {number}")
    if len(fields) != n_users:
        raise DataError("the file is not complete", file=users, got=f"{len(fields)} users", expected=f"{n_users} users")
    names = np.array([columns[3] for columns in fields])
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


_occupations_raw = partial(_occupations, file="u.user", separator="|", n_users=_100K.n_users)


def _occupations_split(folder: Path) -> NDArray[np.int32]:
    """Occupations of the split's users, who are numbered by first appearance in ``u.data``."""
    import numpy as np

    first = np.unique(read_ratings(folder / "u.data", _100K).pairs[:, 0], return_index=True)[1]
    return _occupations_raw(folder)[np.argsort(first)]


_U_DATA = SourceFile(
    "u.data",
    size=1_979_173,
    sha256="06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
    url=f"{_GROUPLENS}/ml-100k/u.data",
)
_U_USER = SourceFile(
    "u.user",
    size=22_628,
    sha256="f120e114da2e8cf314fd28f99417c94ae9ddf1cb6db8ce0e4b5995d40e90e62c",
    url=f"{_GROUPLENS}/ml-100k/u.user",
)

ML_100K = Dataset(
    name="ml-100k",
    summary="MovieLens 100K, 943 users, 1,682 items, 80,000 + 20,000 ratings (GroupLens terms: research use)",
    kind="interactions",
    reader=read_ml_100k,
    files=(
        SourceFile(
            _TRAIN,
            size=856_613,
            sha256="d6827744e2ec2ccd2b7ad50b6b06ad3d7f74aab3b13e18a3dd39ce8b3409947d",
            url=f"{_BNS}/{_TRAIN}",
        ),
        SourceFile(
            _TEST,
            size=214_069,
            sha256="f3524ba85528edd7e2e3877ac80a3a51344ce32109ccad39e8c4412765c92abd",
            url=f"{_BNS}/{_TEST}",
        ),
    ),
    extras=(_U_DATA, _U_USER),
    occupations=_occupations_split,
)

ML_100K_RAW = Dataset(
    name="ml-100k-raw",
    summary="MovieLens 100K as GroupLens ships it (u.data), with times and without a split (research use)",
    kind="interactions",
    reader=partial(read_unsplit, file="u.data", columns=_100K),
    files=(_U_DATA,),
    extras=(_U_USER,),
    occupations=_occupations_raw,
    folder="ml-100k",
)

ML_1M = Dataset(
    name="ml-1m",
    summary="MovieLens 1M, 6,040 users, 3,952 items, 1,000,209 ratings, no split (research use)",
    kind="interactions",
    reader=read_ml_1m,
    files=(
        SourceFile(
            _RATINGS,
            size=24_594_131,
            sha256="506d64ca44484487c11dc2d9a28de5c54948213e6b96285e298afe28d6ea4e0f",
            url=f"{_GROUPLENS}/ml-1m.zip",
            member="ml-1m/ratings.dat",
        ),
    ),
    instead=(
        SourceFile(
            _UNTIMED,
            size=11_553_474,
            sha256="4484680f0e3feb32aa8cebb3bda04ad89909ecde75205bad129f4902e7ce116a",
        ),
    ),
    extras=(SourceFile("users.dat", size=134_368, url=f"{_GROUPLENS}/ml-1m.zip", member="ml-1m/users.dat"),),
    occupations=partial(_occupations, file="users.dat", separator="::", n_users=_1M.n_users),
)
