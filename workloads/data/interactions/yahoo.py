"""Yahoo!-R3: ratings of 5,400 users for songs of their choice, and for ten random songs each.

Marlin and Zemel, "Collaborative Prediction and Ranking with Non-Random Missing Data", RecSys 2009; the Webscope
collection's R3. Of the 15,400 users of the train file only the first 5,400 took part in the survey; the others are
removed, as in the source document. Songs of the survey that the user had rated before are removed from test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workloads.data.interactions.ratings import RatingColumns, Ratings, drop_shared, read_ratings
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, SourceFile

_N_USERS = 5_400
_TRAIN = RatingColumns(
    "user", "song", "rating", n_users=15_400, n_items=1_000, lowest=1, highest=5, separator="\t", header=False, first=1
)
_TEST = replace(_TRAIN, n_users=_N_USERS)
_NAME = "ydata-ymusic-rating-study-v1_0-{}.txt"
_ROWS = {"train": 311_704, "test": 54_000}


def read_yahoo_r3(folder: Path) -> Interactions:
    """Read the two files.

    Raises:
        DataError: a file is damaged.
    """
    import numpy as np

    pairs, ratings, _ = read_ratings(folder / _NAME.format("train"), _TRAIN, _ROWS["train"])
    surveyed = pairs[:, 0] < _N_USERS
    train = Ratings(pairs[surveyed], ratings[surveyed], None)
    test = drop_shared(train, read_ratings(folder / _NAME.format("test"), _TEST, _ROWS["test"]), _TEST)
    users, songs = (np.arange(1, count + 1) for count in (_N_USERS, _TRAIN.n_items))
    return Interactions(
        _N_USERS, _TRAIN.n_items, train.pairs, test.pairs, train.ratings, test.ratings, user_ids=users, item_ids=songs
    )


YAHOO_R3 = Dataset(
    name="yahoo-r3",
    summary="Yahoo! Music R3, 5,400 users, 1,000 songs: rated on their own, and a survey of random songs (on request)",
    kind="interactions",
    reader=read_yahoo_r3,
    files=tuple(SourceFile(_NAME.format(part)) for part in _ROWS),
    obtain="Yahoo! gives R3 to researchers who ask for it at https://webscope.sandbox.yahoo.com/catalog.php?datatype=r",
    clean_from=3,
)
