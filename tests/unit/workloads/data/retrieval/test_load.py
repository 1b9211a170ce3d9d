"""Retrieval collections: BEIR's layout, triples, the cache, splits, and errors in the files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workloads.abstention.part import hold_out, split_collection
from workloads.data import DataError, check_readable, conversion_cache, dataset
from workloads.data.cache import cache_dir, default_data_root
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.synthetic import Planted, generate
from workloads.data.retrieval.types import PARTS, Retrieval, split_queries
from workloads.memory import bytes_by_device

DOCS = [
    {"_id": "d1", "title": "Cats", "text": "purr"},
    {"_id": "d2", "title": "", "text": "dogs bark"},
    {"_id": "d3", "text": ""},
]
QUERIES = [{"_id": f"q{number}", "text": text} for number, text in enumerate(["cat", "dog", "", "bird"])]
HEADER = "query-id\tcorpus-id\tscore"

NOT_UTF_8 = pa.array([b"a", b"\xff"]).view(pa.string())


@pytest.fixture
def beir(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a collection in BEIR's layout; ``qrels`` are file names with lines, joined by ``;``."""

    def write(docs: list[dict] = DOCS, queries: list[dict] = QUERIES, zipped: bool = False, **qrels: str) -> Path:
        folder = tmp_path / "own"
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for name, rows in (("corpus.jsonl", docs), ("queries.jsonl", queries)):
            text = "".join(json.dumps(row) + "\n" for row in rows).encode()
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(text) if zipped else text)
        for name, lines in qrels.items():
            file = folder / ("qrels.tsv" if name == "qrels" else f"qrels/{name}.tsv")
            file.write_text("\n".join([HEADER, *lines.split(";")]) + "\n")
        return folder

    return write


def load(folder: Path, **options: str) -> Retrieval:
    return load_retrieval(str(folder), Path(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("zipped", [False, True])
def test_beir_collection_with_three_parts_is_read(beir: Callable[..., Path], zipped: bool) -> None:
    data = load(beir(train="q1\td2\t2", dev="q3\td1\t1", test="q0\td2\t0;q0\td1\t3", zipped=zipped))
    assert data.docs.to_pylist() == ["Cats purr", "dogs bark", ""]
    assert data.queries.to_pylist() == ["cat", "dog", "", "bird"]
    assert data.doc_ids.to_pylist() == ["d1", "d2", "d3"]
    assert data.judgements.tolist() == [[0, 0, 3], [0, 1, 0], [1, 1, 2], [3, 0, 1]]
    assert [PARTS[part] for part in data.parts] == ["test", "train", "", "dev"]
    assert data.indptr.tolist() == [0, 2, 3, 3, 4]
    assert data.empty_docs.tolist() == [2]
    assert data.empty_queries.tolist() == [2]
    assert data.answered.tolist() == [True, True, False, True]
    assert data.counts() == {
        "documents": 3, "queries": 4, "judgements": 4, "queries_without_relevant": 1, "empty_documents": 1,
        "empty_queries": 1, "unknown_judgements": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["valid", "validation", "val"])
def test_validation_part_with_another_name_than_dev_is_refused(beir: Callable[..., Path], name: str) -> None:
    folder = beir(train="q1\td2\t2", test="q0\td1\t3", **{name: "q3\td1\t1"})
    with pytest.raises(DataError, match=rf"qrels/{name}\.tsv: a validation part is not read.*rename it to dev\.tsv"):
        load(folder)


def test_judgements_with_and_without_a_split_are_refused(beir: Callable[..., Path]) -> None:
    folder = beir(train="q1\td2\t2", test="q0\td1\t3", qrels="q3\td1\t1")
    with pytest.raises(
        DataError, match=r"both .*: got qrels/train\.tsv, qrels/test\.tsv, qrels\.tsv\. Keep qrels\.tsv"
    ):
        load(folder)


def test_judgements_that_are_a_broken_link_are_refused(beir: Callable[..., Path]) -> None:
    folder = beir(train="q1\td2\t2;q0\td1\t1;q3\td1\t1")
    (folder / "qrels/test.tsv").symlink_to(folder / "nowhere")
    with pytest.raises(DataError, match=r"qrels/test\.tsv: the file of dataset .* is missing"):
        load(folder)


def test_grades_of_pairs_and_of_queries_match_the_judgements(beir: Callable[..., Path]) -> None:
    data = load(beir(train="q1\td2\t2", dev="q3\td1\t1", test="q0\td2\t0;q0\td1\t3"))
    before = sum(bytes_by_device(data).values())
    queries = np.arange(4)[:, None]
    docs = np.array([0, 1, 2, -1])
    assert data.grades(queries, docs).tolist() == [[3, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert data.grades(queries, docs).dtype == np.float32
    assert np.argwhere(data.is_judged(queries, docs)).tolist() == [[0, 0], [0, 1], [1, 1], [3, 0]]
    assert sum(bytes_by_device(data).values()) == before + 4 * 8, "the lookup is kept, and counted as memory"
    assert data.judged_grades(np.array([3, 0, 2])).tolist() == [[1, 0], [3, 0], [0, 0]]
    assert data.judged_grades(np.array([2])).shape == (1, 0)


def test_one_file_of_judgements_has_no_parts(beir: Callable[..., Path]) -> None:
    data = load(beir(qrels="q0\td1\t1.0;q0\td1\t1;q1\td2\t-1"))
    assert data.judgements.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert not data.parts.any()


def test_a_collection_is_converted_once_and_mapped(beir: Callable[..., Path]) -> None:
    folder = beir(qrels="q0\td1\t1")
    first = load(folder)
    conversion_cache.load_or_convert.cache_clear()
    (written,) = (cache_dir() / "retrieval").glob("*.arrow")
    before = written.stat().st_mtime_ns
    again = load(folder)
    assert written.stat().st_mtime_ns == before
    assert again.docs.equals(first.docs)
    assert np.array_equal(again.judgements, first.judgements)
    with pytest.raises(ValueError, match="read-only"):
        again.judgements[0, 0] = 1


def test_a_damaged_cache_is_rebuilt(beir: Callable[..., Path]) -> None:
    folder = beir(qrels="q0\td1\t1")
    load(folder)
    (written,) = (cache_dir() / "retrieval").glob("*.arrow")
    content = bytearray(written.read_bytes())
    content[content.index(b"Cats purr")] ^= 1
    written.write_bytes(content)
    conversion_cache.load_or_convert.cache_clear()
    assert load(folder).docs[0].as_py() == "Cats purr"


def test_unknown_ids_are_refused_by_name_or_skipped_and_counted(beir: Callable[..., Path]) -> None:
    folder = beir(train="q1\td2\t1;q9\td1\t1", test="q0\td1\t1;q0\td7\t1")
    with pytest.raises(DataError, match=r"train.tsv, line 3: query q9; test.tsv, line 3: document d7\. .*skip"):
        load(folder)
    data = load(folder, unknown="skip")
    assert data.n_unknown == 2
    assert len(data.judgements) == 2


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ({"qrels": "q0 d1"}, "qrels.tsv, line 2: the line holds no judgement: got 'q0 d1'"),
        ({"qrels": "q0\td1\tgood"}, "line 2: the line holds no judgement"),
        ({"qrels": "q0\td1\t1.5"}, "line 2: the line holds no judgement"),
        ({"qrels": "q0\td1\tinf"}, "line 2: the line holds no judgement"),
        (
            {"train": "q1\td1\t1", "test": "q0\td2\t-1;q2\td2\t0"},
            r"test.tsv: no query of the test part has a relevant document: .*got 2 judged queries, no grade above 0\. ",
        ),
        ({"qrels": "q0\td1\t1;q0\td1\t2"}, "line 3: a pair is judged twice, and differently"),
        ({"qrels": "q0\td1\t2147483648"}, "qrels.tsv, line 2: the grade is too large: got 2147483648"),
        ({"qrels": "q0\td1\t0"}, "no document is judged relevant"),
        (
            {"train": "q0\td1\t1", "test": "q0\td2\t1"},
            "a query is judged in two parts: got query 'q0' in train and test",
        ),
    ],
)
def test_damaged_judgements_are_refused(beir: Callable[..., Path], qrels: dict[str, str], message: str) -> None:
    folder = beir(**qrels)
    with pytest.raises(DataError, match=message):
        check_readable(str(folder), Path())


def test_dev_part_of_multi_cpr_is_read_as_test_part(tmp_path: Path) -> None:
    (tmp_path / "corpus.tsv").write_text("1\tcats\n2\tdogs\n")
    for part in ("train", "dev"):
        (tmp_path / f"{part}.query.txt").write_text("1\tcat\n")
        (tmp_path / f"qrels.{part}.tsv").write_text("1\t0\t1\t1\n")
    data = load(tmp_path)
    assert [PARTS[part] for part in data.parts] == ["train", "test"]
    (tmp_path / "qrels.dev.tsv").write_text("1\t0\t1\t-1\n")
    with pytest.raises(DataError, match=r"qrels.dev.tsv: no query of the test part has a relevant document"):
        load(tmp_path)


@pytest.mark.parametrize("grade", ["²", "--1", "1.0", "9" * 5000])
def test_grade_of_multi_cpr_that_is_no_integer_is_refused(tmp_path: Path, grade: str) -> None:
    for name, text in (("corpus.tsv", "1\tcats\n"), ("train.query.txt", "1\tcat\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "qrels.train.tsv").write_text(f"1\t0\t1\t1\n1\t0\t1\t{grade}\n")
    with pytest.raises(DataError, match=r"qrels\.train\.tsv, line 2: the line holds no judgement"):
        load(tmp_path)


@pytest.mark.parametrize("answers", ['"12"', '{"1": 2}', f"[{'9' * 5000}]", "[" * 10**5])
def test_answers_of_lotte_that_are_no_list_are_refused(tmp_path: Path, answers: str) -> None:
    (tmp_path / "collection.tsv").write_text("1\tcats\n2\tdogs\n")
    (tmp_path / "questions.search.tsv").write_text("0\tcat\n")
    (tmp_path / "qas.search.jsonl").write_text(f'{{"qid": 0, "answer_pids": {answers}}}\n')
    with pytest.raises(DataError, match=r"qas\.search\.jsonl, line 1: the line holds no answers"):
        load(tmp_path)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 10**5])
def test_json_that_python_does_not_parse_is_refused(beir: Callable[..., Path], value: str) -> None:
    folder = beir(qrels="q0\td1\t1")
    (folder / "corpus.jsonl").write_text(f'{{"_id": "d1", "text": "cats", "more": {value}}}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl, line 1: the line holds no text"):
        load(folder)


def test_damaged_texts_are_refused(beir: Callable[..., Path]) -> None:
    for docs, message in (
        ([*DOCS, DOCS[0]], "corpus.jsonl, line 4: an id occurs twice: got 'd1', as in line 1"),
        ([{"_id": "d1"}], "corpus.jsonl, line 1: the line holds no text"),
        ([{"_id": "d1", "text": "a \ud83d b"}], "line 1: the text has half of a character"),
        ([{"_id": "d1", "text": 3}], "line 1: id, title and text are strings"),
        ([], "corpus.jsonl: the file is empty"),
    ):
        folder = beir(docs=docs, qrels="q0\td1\t1")
        with pytest.raises(DataError, match=message):
            load(folder)
    (folder / "corpus.jsonl").write_bytes(b'{"_id": "d1", "text": "\xff"}\n')
    with pytest.raises(DataError, match="line 1: the text is not UTF-8"):
        load(folder)


def test_wrong_header_of_judgements_is_refused(beir: Callable[..., Path]) -> None:
    folder = beir(qrels="q0\td1\t1")
    (folder / "qrels.tsv").write_text("q0 0 d1 1\n")
    with pytest.raises(DataError, match="line 1: the header differs: got 'q0 0 d1 1'"):
        load(folder)


def test_triples_are_queries_with_judged_documents(tmp_path: Path) -> None:
    file = tmp_path / "triples.parquet"
    rows = {
        "query": pa.array(["a", "a", "b"]).dictionary_encode(),
        "positive": ["x", "x", "z"],
        "negative": ["y", "z", "x"],
        "more": [1, 2, 3],
    }
    pq.write_table(pa.table(rows), file)
    data = load(file)
    assert data.queries.to_pylist() == ["a", "b"]
    assert data.docs.to_pylist() == ["x", "y", "z"]
    assert data.judgements.tolist() == [[0, 0, 1], [0, 1, 0], [0, 2, 0], [1, 0, 0], [1, 2, 1]]


def test_damaged_triples_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "triples.parquet"
    for rows, message in (
        ({"query": ["a"], "positive": ["x"], "negative": ["x"]}, "line 1: a pair is judged twice, and differently"),
        ({"query": ["a", "b"], "positive": ["x", None], "negative": ["y", "y"]}, "line 2: column positive has a gap"),
        (
            {"query": NOT_UTF_8, "positive": ["x", "y"], "negative": ["z", "z"]},
            "triples.parquet: .*UTF8",
        ),
        ({"query": [1], "positive": ["x"], "negative": ["y"]}, "column query holds no text: got int64"),
    ):
        pq.write_table(pa.table(rows), file)
        with pytest.raises(DataError, match=message):
            load(file)


def test_dataset_of_interactions_is_refused() -> None:
    with pytest.raises(DataError, match="dataset 'synthetic' has another kind: got interactions; expected retrieval"):
        load_retrieval("synthetic", Path())
    assert dataset("synthetic-retrieval").kind == "retrieval"


def test_split_of_the_source_is_kept_for_queries_with_a_relevant_document(
    beir: Callable[..., Path],
) -> None:
    data = load(beir(train="q1\td2\t2;q2\td1\t0", dev="q3\td1\t1", test="q0\td1\t3"))
    found = split_queries(data, seed=0)
    assert [part.tolist() for part in found] == [[1], [3], [0]]
    refit, validation, _ = split_collection(data, 0, 0.2, 0.5, holdout=False, share=0.0)
    assert [part.tolist() for part in (*refit, validation)] == [[1, 3], [], [0], [3]]


def test_drawn_parts_are_disjoint_seeded_and_of_the_asked_size() -> None:
    data = generate(Planted())
    unsplit = Retrieval(
        data.doc_ids, data.docs, data.query_ids, data.queries, data.judgements, np.zeros_like(data.parts)
    )
    found = split_queries(unsplit, seed=3, validation=0.25, test=0.25)
    assert [len(part) for part in found] == [36, 12, 16]
    assert sorted(np.concatenate(found).tolist()) == list(range(64))
    again, other = split_queries(unsplit, seed=3, validation=0.25, test=0.25), split_queries(unsplit, seed=4)
    assert np.array_equal(found.test, again.test)
    assert not np.array_equal(found.test[:16], other.test[:16])


def test_too_few_queries_to_split_raise_value_error(beir: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="too few queries to split: 2 of 4 have a relevant document"):
        split_queries(load(beir(qrels="q0\td1\t1;q1\td2\t1")), seed=0)


def test_drawn_shares_that_leave_no_query_are_named() -> None:
    data = generate(Planted())
    unsplit = replace(data, parts=np.zeros_like(data.parts))
    cases = {(0.99, 0.5): "Lower split_validation=0.99 or split_test=0.5", (0.2, 0.999): "Lower split_test=0.999"}
    for (validation, test), words in cases.items():
        with pytest.raises(ValueError, match=f"for the test. {words}$"):
            split_queries(unsplit, seed=0, validation=validation, test=test)
    # The test part is the source's.
    with pytest.raises(ValueError, match=r"for the test\. Lower split_validation=0\.99$"):
        split_queries(data, seed=0, validation=0.99)


def test_generated_collection_has_the_planted_relevance() -> None:
    data = generate(Planted())
    assert len(data.docs) == 8 * 8 * 9
    assert np.bincount(data.judgements[:, 2]).tolist() == [0, 128, 64]
    query, doc, _ = data.judgements[data.judgements[:, 2] == 2][5]
    assert set(data.queries[int(query)].as_py().split()) <= set(data.docs[int(doc)].as_py().split())


@pytest.mark.parametrize(
    ("name", "counts", "grades"),
    [
        pytest.param(*row, marks=pytest.mark.data(row[0]))
        for row in (
            ("scifact", (5183, 1109, 1258), 1), ("cran", (1400, 225, 1612), 4), ("cisi", (1460, 112, 3114), 1),
            ("cacm", (3204, 64, 796), 1), ("med", (1033, 30, 696), 1), ("time", (423, 83, 321), 1),
        )
    ],
)  # fmt: skip
def test_real_collections_have_the_expected_counts(name: str, counts: tuple[int, int, int], grades: int) -> None:
    data = load_retrieval(name, default_data_root())
    assert (len(data.docs), len(data.queries), len(data.judgements)) == counts
    assert data.judgements[:, 2].max() == grades
    assert data.n_unknown == 0


def test_own_collections_are_split_with_another_random_stream(beir: Callable[..., Path]) -> None:
    """Collections of the catalogue keep their stream, because stored results depend on it."""
    queries = [{"_id": f"q{number}", "text": f"text {number}"} for number in range(60)]
    data = load(beir(queries=queries, qrels=";".join(f"q{number}\td1\t1" for number in range(60))))
    assert data.own
    assert not load_retrieval("synthetic-retrieval", Path()).own
    order = np.argsort(np.random.PCG64(3).random_raw(60), kind="stable")
    assert split_queries(replace(data, own=False), seed=3).test.tolist() == sorted(order[:30].tolist())
    assert len(np.intersect1d(split_queries(data, seed=3).test, order[:30])) < 25


def test_queries_with_one_text_are_in_one_part() -> None:
    """Case and punctuation are ignored. The abstention part has one query of each text."""
    texts = [f"{text}{end}" for text in map(str, range(40)) for end in ("", "?", " !")]
    ids = pa.array([str(number) for number in range(len(texts))])
    judgements = np.array([[query, query // 3, 1] for query in range(len(texts))], np.int32)
    docs = pa.array([f"about {number}" for number in range(40)])
    data = Retrieval(
        pa.array(list(map(str, range(40)))), docs, ids, pa.array(texts), judgements, np.zeros(len(texts), np.int8)
    )
    assert data.family.tolist() == [query - query % 3 for query in range(len(texts))]
    for seed in range(5):
        parts = split_queries(data, seed=seed)
        groups = [set((part // 3).tolist()) for part in parts]
        assert sum(map(len, groups)) == len(set.union(*groups)) == 40
        held = hold_out(parts.train, parts.validation, 0.3, seed, data.family)
        assert len(set((held.abstention // 3).tolist())) == len(held.abstention)
        assert not set((held.abstention // 3).tolist()) & {
            *(held.train // 3).tolist(),
            *(held.validation // 3).tolist(),
        }
