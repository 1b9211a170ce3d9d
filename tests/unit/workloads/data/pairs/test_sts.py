"""Sentence pairs: table formats, errors by line, and the parts that a table is split into."""

from __future__ import annotations

import gzip
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from workloads.data import DataError, ReadOptions, check_readable, dataset, fingerprint
from workloads.data.pairs.load import load_pairs
from workloads.data.pairs.synthetic import Planted, generate
from workloads.data.pairs.types import Pairs

ROOT = Path("/nowhere")
HEADER = "sentence1,sentence2,score\n"
ROWS = [(f"one {number}", f"two, {number}", float(number % 6)) for number in range(60)]

NOT_UTF_8 = pa.array([b"a", b"\xff"]).view(pa.string())


def table(rows: list[Any]) -> Any:
    first, second, scores = (list(column) for column in zip(*rows))
    return pa.table({"extra": [0] * len(rows), "sentence1": first, "sentence2": second, "score": scores})


def write_csv(path: Path, rows: list[Any], separator: str = ",", header: bool = True) -> Path:
    lines = [separator.join(["sentence1", "sentence2", "score"])] * header
    quote = '"' if separator == "," else ""
    lines += [separator.join([one, f"{quote}{other}{quote}", str(score)]) for one, other, score in rows]
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_parquet(path: Path, rows: list[Any]) -> Path:
    parquet.write_table(table(rows), path)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "parquet": lambda folder: write_parquet(folder / "pairs.parquet", ROWS),
    "csv": lambda folder: write_csv(folder / "pairs.csv", ROWS),
    "csv.gz": lambda folder: write_csv(folder / "pairs.csv.gz", ROWS),
    "tsv": lambda folder: write_csv(folder / "pairs.tsv", ROWS, "\t"),
}


def texts(pairs: Pairs | None) -> set[tuple[str, str, float]]:
    assert pairs is not None
    return set(zip(pairs.first, pairs.second, pairs.scores.tolist()))


@pytest.mark.parametrize("form", FORMS)
def test_table_of_pairs_is_split_into_three_parts(form: str, tmp_path: Path) -> None:
    name = str(FORMS[form](tmp_path))
    assert dataset(name).kind == "sentence_pairs"
    data = load_pairs(name, ROOT)
    parts = [texts(part) for part in (data.train, data.validation, data.test)]
    assert set().union(*parts) == set(ROWS)
    assert sum(map(len, parts)) == len(ROWS)
    assert load_pairs(name, ROOT) is data
    assert texts(load_pairs(name, ROOT, seed=1).test) != parts[2]


def test_parts_have_the_expected_shares_and_depend_only_on_the_texts(tmp_path: Path) -> None:
    rows = [(f"a {number // 2}", "b", 1.0) for number in range(4000)]  # each pair twice
    one, other = write_parquet(tmp_path / "a.parquet", rows), write_parquet(tmp_path / "b.parquet", rows[::-1])
    data = load_pairs(str(one), ROOT)
    assert data.validation is not None
    assert data.test is not None
    assert len(data.test) == pytest.approx(800, abs=100)
    assert len(data.validation) == pytest.approx(320, abs=80)
    assert not texts(data.train) & (texts(data.validation) | texts(data.test))
    assert texts(load_pairs(str(other), ROOT).test) == texts(data.test)


def test_a_pair_in_both_orders_is_in_one_part(tmp_path: Path) -> None:
    rows = [(f"one {number}", f"two {number}", 3.0) for number in range(200)]
    alone = load_pairs(str(write_csv(tmp_path / "alone.csv", rows)), ROOT)
    both = load_pairs(str(write_csv(tmp_path / "both.csv", rows + [(b, a, score) for a, b, score in rows])), ROOT)
    parts = [{frozenset(text[:2]) for text in texts(part)} for part in (both.train, both.validation, both.test)]
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]
    assert texts(alone.test) <= texts(both.test), "adding reversed pairs moves no pair to another part"


def test_scores_from_0_to_1_are_refused(tmp_path: Path) -> None:
    rows = [("a", "b", 0.76), ("c", "d", 1.0), ("e", "f", 0.0)]
    path = write_csv(tmp_path / "pairs.csv", rows)
    with pytest.raises(DataError, match=r"similarities from 0 to 1: .*got at most 1; expected 0 to 5.* by 5"):
        check_readable(str(path), ROOT, ReadOptions())


@pytest.mark.parametrize("dev", ["dev.csv", "validation.csv", "valid.csv", "val.csv"])
def test_folder_is_read_with_its_own_train_dev_and_test_parts(tmp_path: Path, dev: str) -> None:
    write_csv(tmp_path / "train.csv", ROWS[:40])
    write_csv(tmp_path / dev, ROWS[40:50])
    write_csv(tmp_path / "test.csv", ROWS[50:])
    official, on_dev = (load_pairs(str(tmp_path), ROOT, split) for split in ("official", "dev"))  # type: ignore[arg-type]
    assert [texts(part) for part in (official.train, official.validation, official.test)] == [
        set(ROWS[:40]), set(ROWS[40:50]), set(ROWS[50:]),
    ]  # fmt: skip
    assert texts(on_dev.test) == set(ROWS[40:50])
    assert texts(on_dev.train) | texts(on_dev.validation) == set(ROWS[:40])
    before = fingerprint(str(tmp_path), ROOT)
    write_csv(tmp_path / dev, ROWS[40:49])
    assert fingerprint(str(tmp_path), ROOT) != before


@pytest.mark.parametrize(("other", "part"), [("train.parquet", "train.csv"), ("valid.csv", "dev.csv")])
def test_part_in_two_files_is_refused(tmp_path: Path, other: str, part: str) -> None:
    for name in ("train.csv", "dev.csv", other):
        write_csv(tmp_path / name, ROWS)
    with pytest.raises(DataError, match=r"a part is in several files: got .*\. Keep one of them") as caught:
        load_pairs(str(tmp_path), ROOT)
    assert part in str(caught.value)
    assert other in str(caught.value)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_train_table_of_plain_sentences_needs_scored_dev_and_test_parts(form: str, tmp_path: Path) -> None:
    sentences = [f"sentence {number}" for number in range(30)]
    if form == "csv":
        (tmp_path / "train.csv").write_text("\n".join(["sentence", *sentences]) + "\n")
    else:
        parquet.write_table(pa.table({"sentence": sentences}), tmp_path / "train.parquet")
    write_csv(tmp_path / "dev.csv", ROWS[40:50])
    with pytest.raises(DataError, match="trains on plain sentences, from which no scored part can be drawn"):
        load_pairs(str(tmp_path), ROOT)
    write_csv(tmp_path / "test.csv", ROWS[50:])
    pairs = load_pairs(str(tmp_path), ROOT)
    assert pairs.train.hidden
    assert pairs.train.first == pairs.train.second == sentences
    assert texts(pairs.validation) == set(ROWS[40:50])
    with pytest.raises(DataError, match=r"plain sentences, .* got split=dev"):
        load_pairs(str(tmp_path), ROOT, "dev")
    (tmp_path / "test.csv").write_text("sentence\nalone\n")
    with pytest.raises(DataError, match=r"test\.csv: the columns are wrong: got sentence"):
        load_pairs(str(tmp_path), ROOT)


def test_hidden_test_scores_are_refused_unless_split_is_dev(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", ROWS[:40])
    write_csv(tmp_path / "validation.csv", ROWS[40:50])
    write_csv(tmp_path / "test.csv", [(one, other, -1.0) for one, other, _ in ROWS[50:]])
    with pytest.raises(DataError, match=r"hides the scores of its test part .* Set split=dev"):
        check_readable(str(tmp_path), ROOT)
    check_readable(str(tmp_path), ROOT, ReadOptions(split="dev"))
    assert texts(load_pairs(str(tmp_path), ROOT, "dev").test) == set(ROWS[40:50])


@pytest.mark.parametrize("scores", ["no column", "empty"])
def test_test_part_without_scores_is_refused_unless_split_is_dev(scores: str, tmp_path: Path) -> None:
    """The folder of GLUE has such a test part."""
    write_csv(tmp_path / "train.tsv", ROWS[:40], "\t")
    write_csv(tmp_path / "dev.tsv", ROWS[40:50], "\t")
    names, end = (
        (["sentence1", "sentence2"], "") if scores == "no column" else (["sentence1", "sentence2", "score"], "\t")
    )
    lines = ["\t".join(names), *(f"{one}\t{other}{end}" for one, other, _ in ROWS[50:])]
    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n")
    assert texts(load_pairs(str(tmp_path), ROOT, "dev").test) == set(ROWS[40:50])
    with pytest.raises(DataError, match="hides the scores of its test part"):
        load_pairs(str(tmp_path), ROOT)


def test_quotes_in_a_tsv_are_text_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    rows = [(f'"quoted {number}', f'what {number}"', 1.0) for number in range(40)]
    file = write_csv(tmp_path / "pairs.tsv", rows, "\t")
    file.write_text(file.read_text() + "\n\n")
    data = load_pairs(str(file), ROOT)
    assert set().union(*(texts(part) for part in (data.train, data.validation, data.test))) == set(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "a,b,1\na,b,6\n", "line 3: the score is out of its bounds: got '6'; expected a number from 0 to 5"),
        (HEADER + "a,b,-1\n", "line 2: the score is out of its bounds: got '-1'"),
        (HEADER + "a,b,nan\n", "line 2: the score is out of its bounds: got 'nan'"),
        (HEADER + "a,b,0_1\n", "line 2: the score is out of its bounds: got '0_1'"),
        (HEADER + "a,b,high\n", "line 2: the score is out of its bounds: got 'high'"),
        (HEADER + 'a,b,1\n"  ",b,1\n', "line 3: sentence1 is empty: got '  '"),
        (HEADER + 'a,"",1\n', "line 2: sentence2 is empty"),
        (HEADER + "a,b\n", "line 2: the line has another number of fields: got 2 fields; expected 3"),
        ("sentence1,sentence2,grade\na,b,1\n", "the columns are wrong: got sentence1, sentence2, grade"),
        ("sentence1,sentence2,score,score\na,b,1,2\n", "a column occurs twice: got score"),
        (HEADER, "has no pair"),
        (HEADER + '"a\nb",c,1\n\nd,e,6\n', "line 5: the score is out of its bounds: got '6'"),
        (HEADER + "a,b,1\nc," + "d" * 2**18 + ",1\n", "line 3: the line cannot be read: got field larger than field"),
        (
            HEADER + 'a,b,1\n"c,d,2\n"e","f",3\n"g","h",4\n',
            "line 3: the line cannot be read: .* Close the quotes",
        ),
        (HEADER + r'"say \"a\"",b,1' + "\n", "line 2: the line cannot be read: .* write one within them twice"),
    ],
)
def test_damaged_csv_of_pairs_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        load_pairs(str(file), ROOT)


def test_csv_of_pairs_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_bytes(f"{HEADER}a,b,1\ncaf\xe9,b,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"pairs\.csv, line 3: the file is not UTF-8 text"):
        load_pairs(str(tmp_path / "pairs.csv"), ROOT)


def test_the_kind_of_a_table_is_found_without_reading_it_whole(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("user,item\n" + "1,2\n" * 2**20)
    tracemalloc.start()
    try:
        assert dataset(str(tmp_path / "shop.csv")).kind == "interactions"
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_damaged_parquet_of_pairs_is_refused(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "pairs.parquet", [("a", "b", 1.0), ("a", None, 2.0), ("c", "d", None)])
    with pytest.raises(DataError, match="in row 2 sentence2 is empty: got None"):
        load_pairs(str(file), ROOT)
    for column in ("sentence1", "score"):
        values = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "score": ["1", "2"], column: NOT_UTF_8}
        parquet.write_table(pa.table(values), file)
        with pytest.raises(DataError, match=r"pairs\.parquet: .*UTF8"):
            load_pairs(str(file), ROOT)
    times = pa.table({"sentence1": ["a"], "sentence2": ["b"], "score": pa.array([2**62], pa.timestamp("ms"))})
    parquet.write_table(times, file)
    with pytest.raises(DataError, match=r"pairs\.parquet: column score holds a time out of range"):
        load_pairs(str(file), ROOT)
    columns = [pa.array([value]) for value in ("a", "b", 1.0, 2.0)]
    parquet.write_table(pa.table(columns, ["sentence1", "sentence2", "score", "score"]), tmp_path / "double.parquet")
    with pytest.raises(DataError, match="a column occurs twice: got score"):
        load_pairs(str(tmp_path / "double.parquet"), ROOT)
    file = write_parquet(tmp_path / "other.parquet", [("a", "b", 1.0), ("c", "d", None)])
    with pytest.raises(DataError, match="in row 2 the score is out of its bounds: got None"):
        load_pairs(str(file), ROOT)


def test_another_kind_of_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="'synthetic' has another kind: got interactions; expected pairs of sentences"):
        load_pairs("synthetic", ROOT)


def test_split_dev_without_a_dev_part_is_refused(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "pairs.parquet", ROWS)
    with pytest.raises(DataError, match="has no dev part: got split=dev"):
        load_pairs(str(file), ROOT, "dev")


class TestGLUE:
    def test_missing_datasets_package_is_reported_with_the_install_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataError, match=r"package datasets, which is missing\. Install it: pip install datasets"):
            load_pairs("glue-stsb", ROOT, "dev")

    def test_unreachable_hub_raises_data_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(*_: str) -> None:
            raise ConnectionError("Couldn't reach the hub\nand a traceback")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=unreachable))
        with pytest.raises(DataError, match=r"not in the cache .*: got Couldn't reach the hub. Load it once"):
            load_pairs("glue-stsb", ROOT, "dev")

    def test_columns_of_glue_are_read_with_label_as_score(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = {
            "sentence1": ["a", "b"] * 30,
            "sentence2": [f"c{number}" for number in range(60)],
            "label": [1.5, 5] * 30,
        }
        hidden = {**rows, "label": [-1.0] * 60}
        parts = {"train": rows, "validation": rows, "test": hidden}
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *name: parts))
        data = load_pairs("glue-stsb", ROOT, "dev", seed=5)
        assert data.test is not None
        assert data.test.scores[:2].tolist() == [1.5, 5.0]
        with pytest.raises(DataError, match="hides the scores"):
            load_pairs("glue-stsb", ROOT)


class TestSynthetic:
    def test_generated_pairs_match_recorded_examples(self) -> None:
        data = generate(Planted())
        assert (data.train.first[0], data.train.second[0]) == (
            "c12w1 the6 the7 the2 c16w0 c13w0 the9 c4w0", "the1 c13w0 c12w1 c4w0 c16w0",
        )  # fmt: skip
        assert data.train.scores[:2].tolist() == [5.0, 3.75]

    def test_the_score_is_the_share_of_concepts_in_both(self) -> None:
        data = generate(Planted())
        for first, second, score in zip(data.train.first, data.train.second, data.train.scores):
            concepts = [{word.partition("w")[0] for word in text.split() if word[0] == "c"} for text in (first, second)]
            assert [len(found) for found in concepts] == [4, 4]
            assert score == 5 * len(concepts[0] & concepts[1]) / 4

    def test_word_overlap_correlates_only_partly_with_the_scores(self) -> None:
        from scipy.stats import spearmanr

        test = generate(Planted()).test
        assert test is not None
        words = [(set(first.split()), set(second.split())) for first, second in zip(test.first, test.second)]
        overlap = [len(one & other) / len(one | other) for one, other in words]
        assert 0.3 < spearmanr(overlap, test.scores).statistic < 0.7


@pytest.mark.data("stsb")
def test_stsb_has_the_expected_sizes_and_scores() -> None:
    data = load_pairs("stsb", Path(os.environ["ORCHESTRATOR_DATA"]))
    assert [len(part) for part in (data.train, data.validation, data.test) if part is not None] == [5749, 1500, 1379]
    assert data.train.first[0] == "A plane is taking off."
    assert data.train.scores[:2].tolist() == [5.0, pytest.approx(3.8)]
    assert data.test is not None
    assert np.mean(data.test.scores) == pytest.approx(2.608, abs=1e-3)
