"""MovieLens-100K in the split of the source document: (943 x 1,682), 80,000 train and 20,000 test ratings.

Harper and Konstan, "The MovieLens Datasets", ACM TiiS 5(4), 2015. The split is that of Liu and Wang,
"Bayesian Negative Sampling for Recommendation", ICDE 2023: 80/20 per user at random. Every rating counts as
positive.
"""

from __future__ import annotations

from pathlib import Path

from workloads.data.interactions import Interactions
from workloads.data.ratings import RatingColumns, check_disjoint, read_ratings
from workloads.data.source import Dataset, SourceFile

_COLUMNS = RatingColumns("user", "item", "rating", n_users=943, n_items=1682, lowest=1, highest=5)
_TRAIN, _TEST = "100k_train.csv", "100k_test.csv"
_URL = "https://raw.githubusercontent.com/liubin06/BNS/854e96181a1516ea4057c8e4594f582f15f5a910/BNS_MF"


def read_ml_100k(folder: Path) -> Interactions:
    """Read the two files of the split.

    Raises:
        DataError: a file is damaged, or a pair is in both.
    """
    train, train_ratings = read_ratings(folder / _TRAIN, _COLUMNS)
    test, test_ratings = read_ratings(folder / _TEST, _COLUMNS)
    check_disjoint(folder / _TRAIN, train, folder / _TEST, test, _COLUMNS.n_items)
    return Interactions(_COLUMNS.n_users, _COLUMNS.n_items, train, test, train_ratings, test_ratings)


ML_100K = Dataset(
    name="ml-100k",
    summary="MovieLens 100K, 943 users, 1,682 items, 80,000 + 20,000 ratings (GroupLens terms: research use)",
    kind="interactions",
    version="1",
    reader=read_ml_100k,
    files=(
        SourceFile(
            _TRAIN,
            size=856_613,
            sha256="d6827744e2ec2ccd2b7ad50b6b06ad3d7f74aab3b13e18a3dd39ce8b3409947d",
            url=f"{_URL}/{_TRAIN}",
        ),
        SourceFile(
            _TEST,
            size=214_069,
            sha256="f3524ba85528edd7e2e3877ac80a3a51344ce32109ccad39e8c4412765c92abd",
            url=f"{_URL}/{_TEST}",
        ),
    ),
)
