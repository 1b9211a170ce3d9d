"""Gowalla, Yelp2018 and LastFM in the text formats of LightGCN: one line per user, or per interaction.

He et al., "LightGCN", SIGIR 2020; LastFM is the one of its PyTorch version (HetRec 2011). Users and items keep
their numbers: LastFM has 1,892 users, 12 of them without interactions.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from workloads.data.errors import DataError
from workloads.data.files import content, plain_or_gz
from workloads.data.interactions.ratings import RatingColumns, check_disjoint, read_ratings
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, SourceFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXPECTED = "integers between spaces: user item item ..."
_TRUST = "trustnetwork.txt"
_DIGITS = 9  # of an id

_URL = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch"
_PINNED = f"{_URL}/ef7aae37fc51973feabfc7e534720ea51f9eedf6/data/lastfm"

_LASTFM = RatingColumns(
    "user", "item", "playcount", n_users=1_892, n_items=4_489, lowest=0, highest=math.inf,
    separator="\t", header=False, first=1,
)  # fmt: skip


def read_lastfm(folder: Path) -> Interactions:
    """Read ``data1.txt`` (train) and ``test1.txt``. Play counts are not ratings and are ignored.

    Raises:
        DataError: a file is damaged, or a pair is in both.
    """
    import numpy as np

    files = folder / "data1.txt", folder / "test1.txt"
    train, test = (read_ratings(file, _LASTFM) for file in files)
    check_disjoint(files[0], train, files[1], test, _LASTFM)
    users, items = (np.arange(1, count + 1) for count in (_LASTFM.n_users, _LASTFM.n_items))
    return Interactions(_LASTFM.n_users, _LASTFM.n_items, train.pairs, test.pairs, user_ids=users, item_ids=items)


def _is_user(field: bytes) -> bool:
    return field.isdigit() and len(field) < 10 and 1 <= int(field) <= _LASTFM.n_users


def read_trust_network(folder: Path) -> NDArray[np.int32]:
    """Read ``trustnetwork.txt``: pairs of users who know each other, in both orders, (n, 2), without repetitions.

    Raises:
        DataError: a line is not two users of the dataset.
    """
    import numpy as np

    file = plain_or_gz(folder / _TRUST)
    pairs = []
    for number, line in enumerate(content(file).splitlines(), 1):
        fields = line.split()
        if len(fields) != 2 or not all(map(_is_user, fields)):
            expected = f"two users in 1..{_LASTFM.n_users}"
            raise DataError(
                "the line is no pair of users", file=file, line=number, got=repr(line[:40]), expected=expected
            )
        pairs.append((int(fields[0]) - 1, int(fields[1]) - 1))
    both = np.array(pairs, np.int32).reshape(-1, 2)
    both = np.unique(np.concatenate([both, both[:, ::-1]]), axis=0)
    unequal: NDArray[np.int32] = both[both[:, 0] != both[:, 1]]
    return unequal


def read_item_lists(folder: Path, sizes: tuple[int, int] | None = None, rows: tuple[int, ...] = ()) -> Interactions:
    """Read ``train.txt`` and ``test.txt``, with a line ``user item item ...`` for each user.

    Repeated items of a line count once. Pairs in both parts are removed from test.

    Args:
        folder: the folder of the files.
        sizes: number of users and items, whose ids are then 0, 1, ...; by default the ids that occur in either part are
            numbered in their order, without gaps.
        rows: number of interactions in each file, if known.

    Raises:
        DataError: a file is empty, has other lines, an id out of range, or another number of interactions.
    """
    import numpy as np

    from workloads.data.interactions.codes import decode, distinct, encode, unless_counted

    files = tuple(plain_or_gz(folder / f"{part}.txt") for part in ("train", "test"))
    parts = [_item_lists(file, sizes) for file in files]
    for file, pairs, expected in zip(files, parts, rows):
        if len(pairs) != expected:
            got = f"{len(pairs)} interactions"
            raise DataError("the file is not complete", file=file, got=got, expected=f"{expected}")
    if sizes is None:
        users, items = (np.unique(column) for column in np.concatenate(parts).T)
        for pairs in parts:
            pairs[:, 0], pairs[:, 1] = np.searchsorted(users, pairs[:, 0]), np.searchsorted(items, pairs[:, 1])
    else:
        users, items = (np.arange(size) for size in sizes)
    train, test = (distinct(encode(pairs, len(items))) for pairs in parts)
    test = test[~np.isin(test, train)]
    return Interactions(
        len(users), len(items), decode(train, len(items)), decode(test, len(items)),
        user_ids=unless_counted(users), item_ids=unless_counted(items),
    )  # fmt: skip


def _item_lists(file: Path, sizes: tuple[int, int] | None) -> NDArray[np.int64]:
    """Pairs of a file, in the file's order."""
    import numpy as np

    text = content(file)
    characters = np.frombuffer(text, np.uint8)
    digit = characters - np.uint8(ord("0")) < 10
    newline = characters == ord("\n")
    strange = np.flatnonzero(~(digit | newline | np.isin(characters, list(b" \t\r"))))
    if strange.size:
        _refuse(file, text, int(strange[0]), "the line holds something else than integers")
    alone = np.flatnonzero((characters[:-1] == ord("\r")) & ~newline[1:])
    if alone.size:
        raise DataError("the lines end with CR alone", file=file, line=1, fix="Convert the file's line ends to LF")
    begins = np.flatnonzero(digit & ~np.concatenate([[False], digit[:-1]]))
    if not begins.size:
        raise DataError("the file is empty", file=file, line=1, got="no interaction", expected=_EXPECTED)
    ends = np.flatnonzero(digit & ~np.concatenate([digit[1:], [False]]))
    long = np.flatnonzero(ends - begins >= _DIGITS)
    if long.size:
        _refuse(file, text, int(begins[long[0]]), "an id is out of range")
    numbers = np.fromstring(text, np.int64, sep=" ")
    lines = np.cumsum(newline)[begins]
    names_user = np.concatenate([[True], lines[1:] != lines[:-1]])
    users = numbers[names_user][np.cumsum(names_user) - 1]
    if sizes is None:
        padded = np.flatnonzero((characters[begins] == ord("0")) & (ends > begins))
        if padded.size:
            _refuse(file, text, int(begins[padded[0]]), "an id begins with 0", "integers, so that 7 and 07 are not one")
        _check_lists(file, numbers[names_user], np.bincount(np.cumsum(names_user) - 1))
    if sizes is not None:
        outside = np.flatnonzero(numbers >= np.where(names_user, *sizes))
        if outside.size:
            at, (n_users, n_items) = int(begins[outside[0]]), sizes
            _refuse(file, text, at, "an id is out of range", f"users below {n_users} and items below {n_items}")
    pairs: NDArray[Any] = np.stack([users, numbers], axis=1)[~names_user]
    if not len(pairs):
        raise DataError("the file is empty", file=file, line=1, got="no interaction", expected=_EXPECTED)
    return pairs


def _check_lists(file: Path, users: NDArray[np.int64], fields: NDArray[np.int64]) -> None:
    """Refuse lines ``user item rating`` or ``user item rating time``, by the user and the number of fields of each."""
    import numpy as np

    if fields.min() == fields.max() in (3, 4) and len(np.unique(users)) < len(users):
        raise DataError(
            "the lines look like user, item, rating, and should be a user's items each", file=file, line=1,
            got=f"{fields[0]} numbers in every line, several lines of a user", expected=_EXPECTED,
            fix="Name the file .tsv or .csv, with a header such as user, item, rating",
        )  # fmt: skip


def _refuse(file: Path, text: bytes, at: int, what: str, expected: str = _EXPECTED) -> NoReturn:
    """Raise DataError with the line of a character and its text."""
    word = text[at : at + 40].split(maxsplit=1)[0].decode(errors="backslashreplace")
    raise DataError(what, file=file, line=text.count(b"\n", 0, at) + 1, got=repr(word), expected=expected)


def _lists(name: str, summary: str, sizes: tuple[int, int], rows: tuple[int, int]) -> Dataset:
    return Dataset(
        name=name,
        summary=f"{summary}, {sizes[0]:,} users, {sizes[1]:,} items, {rows[0]:,} + {rows[1]:,} interactions",
        kind="interactions",
        reader=partial(read_item_lists, sizes=sizes, rows=rows),
        files=tuple(
            SourceFile(f"{part}.txt", url=f"{_URL}/master/data/{name}/{part}.txt") for part in ("train", "test")
        ),
    )


GOWALLA = _lists("gowalla", "check-ins of Gowalla, LightGCN's split", (29_858, 40_981), (810_128, 217_242))
YELP2018 = _lists("yelp2018", "businesses of Yelp 2018, LightGCN's split", (31_668, 38_048), (1_237_259, 324_147))
LASTFM = Dataset(
    name="lastfm",
    summary="artists of Last.fm, LightGCN's split, 1,892 users, 4,489 items, 42,135 + 10,533 interactions",
    kind="interactions",
    reader=read_lastfm,
    files=(
        SourceFile(
            "data1.txt",
            size=579_727,
            sha256="c82af3228cbbda2f55a39244de09ed93292894f1d0d9f1908ebb57e27598fded",
            url=f"{_PINNED}/data1.txt",
            also=("15d45d21149cf0340a4f901fceae31bae313aa2cd1f346a4c728e55685289432",),
        ),
        SourceFile(
            "test1.txt",
            size=144_867,
            sha256="de4417c0e6123284ce59a0934bcf5288ec1ec8774a18a1eef453c9952dfa48f9",
            url=f"{_PINNED}/test1.txt",
            also=("0e49491e70101693871a1890ad1d68f75a45f05067516a2ac24b8e464d7b4195",),
        ),
    ),
    extras=(
        SourceFile(
            _TRUST,
            size=223_780,
            sha256="eb2f3eb5dbee61161923d0231874cce574c33cea8b9f331d912b1642a1cd29ba",
            url=f"{_PINNED}/{_TRUST}",
        ),
    ),
    friends=read_trust_network,
)
