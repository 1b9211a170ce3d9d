"""Topics, judgements and runs in TREC format, and errors in the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from workloads.data import DataError
from workloads.data.datasets import check_kind
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.runs import read_run
from workloads.data.retrieval.types import PARTS, Retrieval

MARKED = """<top>
<num> Number: 301
<title> International Organized
Crime
<desc> Description:
Identify organizations.
</top>

<top>
<num>302</num>
<title>Poliomyelitis</title>
</top>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = [{"_id": f"d{number}", "title": "", "text": f"text {number}"} for number in range(4)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (tmp_path / "topics.tsv").write_text("301\tcrime\n302\tpolio\n")
    (tmp_path / "qrels.trec").write_text("301 0 d1 2\n301 0 d2 -1\n302 0 d0 1\n")
    return tmp_path


def load(folder: Path, **options: str) -> Retrieval:
    return load_retrieval(str(folder), Path(), **options)  # type: ignore[arg-type]


def run(folder: Path, text: str) -> Path:
    (folder / "run.trec").write_text(text)
    return folder / "run.trec"


def test_topics_and_judgements_in_trec_format_are_read(folder: Path) -> None:
    data = load(folder)
    assert data.query_ids.to_pylist() == ["301", "302"]
    assert data.queries.to_pylist() == ["crime", "polio"]
    assert data.judgements.tolist() == [[0, 1, 2], [0, 2, 0], [1, 0, 1]]


def test_marked_up_topics_and_judgements_of_parts_are_read(folder: Path) -> None:
    (folder / "topics.tsv").unlink()
    (folder / "topics.trec").write_text(MARKED)
    (folder / "qrels.trec").unlink()
    (folder / "qrels").mkdir()
    (folder / "qrels/train.trec").write_text("301 0 d1 1\n")
    (folder / "qrels/test.trec").write_text("302 0 d0 1\n")
    data = load(folder)
    assert data.queries.to_pylist() == ["International Organized Crime", "Poliomyelitis"]
    assert [PARTS[part] for part in data.parts] == ["train", "test"]


def test_a_title_ends_at_the_next_element_only(folder: Path) -> None:
    (folder / "topics.tsv").unlink()
    (folder / "topics.trec").write_text(
        "<top>\n<num> 301\n<title> risk <5% or a<b \n\n<narr> more\n</top>\n<top><num>302<title>last one\n</top>"
    )
    assert load(folder).queries.to_pylist() == ["risk <5% or a<b", "last one"]
    (folder / "topics.trec").write_bytes(b"<top>\n<num> 301\n\n<title> caf\xe9\n</top>\n")
    with pytest.raises(DataError, match=r"line 4: the text is not UTF-8"):
        load(folder)


def test_topics_in_both_forms_are_refused(folder: Path) -> None:
    (folder / "topics.trec").write_text(MARKED)
    with pytest.raises(DataError, match=r"in two files: got topics\.tsv and topics\.trec\. Keep one"):
        load(folder)


def test_folder_with_the_files_of_beir_and_of_trec_is_refused(folder: Path) -> None:
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "other"}\n')
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    beir, trec = "corpus.jsonl, queries.jsonl, qrels.tsv", "corpus.jsonl, topics.tsv, qrels.trec"
    with pytest.raises(DataError, match=f"the folder has two layouts: got {beir}; and {trec}"):
        load(folder)
    with pytest.raises(DataError, match="the folder has two layouts"):
        check_kind(str(folder), "retrieval")


def test_collection_in_a_folder_below_topics_and_judgements_is_not_read(folder: Path) -> None:
    (folder / "old").mkdir()
    for name in ("corpus.jsonl", "topics.tsv"):
        (folder / "old" / name).write_text((folder / name).read_text())
    (folder / "old/queries.jsonl").write_text('{"_id": "q1", "text": "other"}\n')
    (folder / "old/qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert load(folder).query_ids.to_pylist() == ["301", "302"]


@pytest.mark.parametrize(
    ("file", "text", "message", "line"),
    [
        ("topics.tsv", "301 crime\n", "the topic has no id or no text", 1),
        ("topics.tsv", "301\ta\n301\tb\n", "an id occurs twice", 2),
        ("qrels.trec", "301 0 d1\n", "the line holds no judgement", 1),
        ("qrels.trec", "301 0 d1 1_0\n", "the line holds no judgement", 1),
        ("qrels.trec", "301 0 d1 1\n301 0 d2 \u0661\n", "the line holds no judgement", 2),
        ("qrels.trec", f"301 0 d1 {'9' * 5000}\n", "the line holds no judgement", 1),
        ("qrels.trec", "301 0 d1 1\n301 0 d9 1\n", "name texts that are not there", 2),
    ],
)
def test_damaged_topics_and_judgements_are_refused_with_the_line(
    folder: Path, file: str, text: str, message: str, line: int
) -> None:
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        load(folder)
    assert f"line {line}" in str(error.value)


@pytest.mark.parametrize(("file", "message"), [("topics.tsv", "tsv: the file holds no topic"), ("qrels.trec", "relev")])
def test_empty_topics_and_judgements_are_refused_with_the_path(folder: Path, file: str, message: str) -> None:
    (folder / file).write_text("\n")
    with pytest.raises(DataError, match=rf"^{folder}.*{message}"):
        load(folder)


def test_byte_order_mark_is_not_read_as_part_of_an_id(folder: Path) -> None:
    for name in ("topics.tsv", "qrels.trec"):
        (folder / name).write_text((folder / name).read_text(), encoding="utf-8-sig")
    data = load(folder)
    assert data.query_ids.to_pylist() == ["301", "302"]
    assert len(data.judgements) == 3


def test_a_run_is_ordered_by_its_scores(folder: Path) -> None:
    """Ranks are ignored; equal scores are ordered by document, lists are cut, and a topic may be missing."""
    data = load(folder)
    found = read_run(run(folder, "301 Q0 d3 1 0.5 x\n301 Q0 d2 2 7 x\n301 Q0 d0 3 .5 x\n301 Q0 d1 4 -1 x\n"), data, 3)
    assert found.docs.tolist() == [[2, 0, 3], [-1, -1, -1]]
    assert found.scores[0].tolist() == [7, 0.5, 0.5]
    assert np.isneginf(found.scores[1]).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("301 Q0 d3 1\n", "the line is not that of a run"),
        ("301 Q0 d3 1 high x\n", "the line is not that of a run"),
        ("301 Q0 d3 1 1_0 x\n", "the line is not that of a run"),
        ("301 Q0 d9 1 1.0 x\n", "the run names a text that is not there"),
        ("999 Q0 d1 1 1.0 x\n", "the run names a text that is not there"),
        ("301 Q0 d1 1 1.0 x\n301 Q0 d1 2 0.5 x\n", "a document has two"),
        ("301 Q0 d1 1 nan x\n", "a score is not finite"),
    ],
)
def test_a_run_with_an_error_is_refused_with_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_run(run(folder, text), load(folder), 3)
    assert f"line {text.count(chr(10))}" in str(error.value)


def test_a_run_that_cannot_be_decompressed_is_refused(folder: Path) -> None:
    (folder / "run.gz").write_text("301 Q0 d3 1 0.5 x\n")
    with pytest.raises(DataError, match=r"run\.gz: the run cannot be read: got it cannot be decompressed"):
        read_run(folder / "run.gz", load(folder), 3)


def test_unknown_texts_of_a_run_may_be_left_out(folder: Path) -> None:
    found = read_run(run(folder, "301 Q0 d9 1 2 x\n999 Q0 d1 1 1 x\n301 Q0 d1 1 1 x\n"), load(folder), 2, "skip")
    assert found.docs.tolist() == [[1, -1], [-1, -1]]
    with pytest.raises(DataError, match="the run is missing"):
        read_run(folder / "none.trec", load(folder), 2)
