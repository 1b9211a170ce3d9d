"""The count of test examples that are also in the training part, for each kind of data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import class_folders
from workloads.data.datasets import overlap
from workloads.data.errors import DataError
from workloads.data.images.types import Pixels
from workloads.data.overlap import difference_hashes


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_table_with_a_test_pair_in_train_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path / "i", {"train.csv": "user,item\n1,1\n1,2\n2,1\n", "test.csv": "user,item\n1,2\n2,2\n1,3\n"})
    with pytest.raises(DataError, match=r"test\.csv, line 2: a pair of the test part is also in the train part"):
        overlap(name, tmp_path)


def test_overlap_of_sentence_pairs_ignores_case_punctuation_and_order(tmp_path: Path) -> None:
    head = "sentence1\tsentence2\tscore\n"
    train = "A dog runs.\tThe cat sleeps\t1.0\nOne\tTwo\t2.0\n"
    test = "the cat  sleeps!\ta dog runs\t1.0\nOne\tThree\t2.0\n"
    found = overlap(write(tmp_path / "p", {"train.tsv": head + train, "test.tsv": head + test}), tmp_path)
    assert found is not None
    assert (found.repeated, found.total) == (1, 2)
    assert found.example == "the cat  sleeps! | a dog runs"


def test_overlap_of_queries_ignores_case_and_punctuation(tmp_path: Path) -> None:
    queries = {"a": "What is it?", "b": "what is it", "c": "And that?"}
    name = write(
        tmp_path / "q",
        {
            "corpus.jsonl": json.dumps({"_id": "d", "title": "", "text": "text"}) + "\n",
            "queries.jsonl": "".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in queries.items()),
            "qrels/train.tsv": "query-id\tcorpus-id\tscore\na\td\t1\n",
            "qrels/test.tsv": "query-id\tcorpus-id\tscore\nb\td\t1\nc\td\t1\n",
        },
    )
    assert str(overlap(name, tmp_path)) == ("1 of 2 test queries are also in the training part, such as 'what is it'")


def test_overlap_of_questions_needs_equal_text_and_topic(tmp_path: Path) -> None:
    asked = [("train", "ann", "Who?"), ("train", "bob", "Where?"), ("test", "ann", "who"), ("test", "ann", "where")]
    rows = [
        {"id": str(n), "kb": "g", "hops": 1, "question": text, "topic_entity": topic, "split": split,
         "path": [[topic, "knows", "cyd"]]}
        for n, (split, topic, text) in enumerate(asked)
    ]  # fmt: skip
    lines = "\n".join(map(json.dumps, rows))
    name = write(tmp_path, {"questions.jsonl": lines, "g.tsv": "ann\tknows\tcyd\nbob\tknows\tcyd\n"})
    assert str(overlap(name, tmp_path)) == "1 of 2 test questions are also in the training part, such as 'who'"


@pytest.mark.filterwarnings("error")
def test_overlap_of_images_counts_equal_ones_of_8_pixels(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "test", {"a": 1, "b": 3})
    found = overlap(str(tmp_path), tmp_path)
    assert str(found) == "3 of 4 test images are also in the training part, such as test image 0"


def pixels(images: np.ndarray) -> Pixels:
    return Pixels(images, np.zeros(len(images), np.int64), np.arange(len(images)))


def test_brighter_or_noisier_image_has_the_same_hash_but_others_differ() -> None:
    rng = np.random.default_rng(0)
    coarse = rng.permuted(np.tile(np.arange(0, 198, 22), (20 * 3, 8, 1)), axis=2).reshape(20, 3, 8, 9)
    coarse[:] = coarse[:, :1]
    images = coarse.repeat(9, axis=2).repeat(8, axis=3).astype(np.uint8)  # 72 pixels: cells of whole pixels
    noisy = images + rng.integers(0, 20, images.shape, dtype=np.uint8)
    first = difference_hashes(pixels(images))
    assert (first == difference_hashes(pixels(noisy))).all()
    assert (first == difference_hashes(pixels(images + np.uint8(40)))).all()
    assert len(set(first.tolist())) == 20


def test_difference_hash_matches_a_reference_of_loops() -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    for image, found in zip(images, difference_hashes(pixels(images)).tolist()):
        grey = image.mean(axis=0)
        cells = [[grey[r * 4 : r * 4 + 4, c * 32 // 9 : (c + 1) * 32 // 9].mean() for c in range(9)] for r in range(8)]
        bits = [cells[r][c + 1] > cells[r][c] for r in range(8) for c in range(8)]
        assert found == sum(1 << number for number, bit in enumerate(bits) if bit)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("synthetic", 4138),
        ("synthetic-images", 512),
        ("synthetic-pairs", 160),
        ("synthetic-retrieval", 32),
        ("synthetic-questions", 240),
    ],
)
def test_embedded_datasets_have_no_overlap(name: str, total: int, tmp_path: Path) -> None:
    found = overlap(name, tmp_path)
    assert found is not None
    assert (found.repeated, found.total) == (0, total)
