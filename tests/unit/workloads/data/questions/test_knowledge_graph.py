"""Questions over knowledge graphs: reading, neighbourhoods of topics, and errors in the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.data import DataError, check, conversion_cache, dataset
from workloads.data.cache import default_data_root
from workloads.data.questions.knowledge_graph import numbered
from workloads.data.questions.load import load_questions
from workloads.data.questions.neighbourhoods import neighbourhoods
from workloads.data.questions.synthetic import SURE, Planted, generate
from workloads.data.questions.types import GraphQuestions, Question

GRAPH = [
    ("ann", "child", "bob"), ("bob", "born_in", "rome"), ("cyd", "born_in", "rome"), ("rome", "in", "italy"),
    ("dan", "likes", "dan"), ("ann", "likes", "dan"), ("eve", "likes", "fay"),
]  # fmt: skip
ROW = {
    "id": "q1", "kb": "family", "hops": 2, "question": "where was ann 's child born ?", "topic_entity": "ann",
    "path": [["ann", "child", "bob"], ["bob", "born_in", "rome"]], "split": "train",
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a folder of questions (rows override :data:`ROW`) and a graph, and returns its path."""

    def write(*rows: dict[str, Any], graph: str = "\n".join("\t".join(triple) for triple in GRAPH)) -> str:
        lines = [json.dumps({**ROW, "id": f"q{number}", **row}) for number, row in enumerate(rows)]
        (tmp_path / "questions.jsonl").write_text("\n".join(lines))
        (tmp_path / "family.tsv").write_text(graph)
        return str(tmp_path)

    return write


def ann(hops: int, fill: int = 0) -> tuple[GraphQuestions, Any]:
    path = (("bob", "born_in", "rome"),)
    data = numbered([Question("q", "?", "family", hops, "ann", path, "train", "t")], {"family": GRAPH})
    return data, neighbourhoods(data, fill, 0)


def test_own_questions_and_graph_are_read(written: Callable[..., str]) -> None:
    path = written({}, {"split": "dev", "question": "ann 's child 's birthplace ?"}, {"split": "test", "set": "own"})
    assert dataset(path).kind == "graph_questions"
    check(path, Path())
    data = load_questions(path, Path())
    assert data.part.tolist() == [0, 1, 2]
    assert [data.types[number] for number in data.type] == ["family", "family", "own"]
    assert data.family.tolist() == [0, 0, 0]
    subject, relation, target = data.triples[data.answer[0]]
    assert (data.entities[subject], data.relations[relation], data.entities[target]) == ("bob", "born_in", "rome")
    assert load_questions(path, Path()) is data


def test_files_may_begin_with_a_byte_order_mark(written: Callable[..., str]) -> None:
    path = Path(written({}))
    for file in path.iterdir():
        file.write_text(file.read_text(), encoding="utf-8-sig")
    (path / "._family.tsv").write_bytes(b"\0of the Finder")
    assert load_questions(str(path), Path()).texts == [ROW["question"]]


def test_damaged_conversion_of_questions_is_rebuilt(written: Callable[..., str], tmp_path: Path) -> None:
    path = written({}, {"split": "dev", "question": "où est né Bob ?"})
    first = load_questions(path, Path())
    (kept,) = (tmp_path / "cache" / "questions").glob("*.arrow")
    whole = kept.read_bytes()
    for content in (whole, whole[: len(whole) // 2], whole.replace(b"rome", b"pisa")):
        kept.unlink()  # the first dataset still maps the old file
        kept.write_bytes(content)
        inode = kept.stat().st_ino
        conversion_cache.load_or_convert.cache_clear()
        again = load_questions(path, Path())
        for field in fields(GraphQuestions):
            old, new = (getattr(data, field.name) for data in (first, again))
            assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new
        assert kept.read_bytes() == whole
        assert (kept.stat().st_ino == inode) == (content == whole), "an intact one is not written again"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"topic_entity": "zed"}], "line 1: the topic 'zed' is not in the graph family"),
        ([{"path": [["ann", "child", "rome"]]}], "the answer .* is not in the graph family"),
        ([{}, {"id": "q0"}], "line 2: an id occurs twice: got 'q0'"),
        ([{"kb": "famly"}], "unknown graph: got 'famly'; expected one of family"),
        ([{"split": "valid"}], "unknown split: got 'valid'; expected one of train, dev, test"),
        ([{"path": []}], "the path has no triple, or more than hops"),
        ([{"question": "half \ud83d"}], "line 1: the text has half of a character"),
        ([{"hops": 0}], "the path has no triple, or more than hops"),
        ([{"hops": "two"}], "the line holds no question"),
        ([{"hops": 2.5}], "the line holds no question"),
        ([{"hops": float("inf")}], "the line holds no question"),
        ([{"hops": 10**30}], "the line holds no question"),
        ([{"hops": 10**400}], "the line holds no question"),
        *(([{name: None}], "line 1: the line holds no question") for name in ("id", "kb", "topic_entity", "split")),
        ([{"path": [["ann", None, "bob"]]}], "line 1: the line holds no question"),
        ([{}, {"question": None}], "line 2: the line holds no question"),
    ],
)
def test_damaged_questions_are_refused(written: Callable[..., str], rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_questions(written(*rows), Path())


def test_damaged_graph_is_refused(written: Callable[..., str]) -> None:
    with pytest.raises(DataError, match=r"family.tsv, line 2: the line holds no triple: got 'ann\\tchild'"):
        load_questions(written({}, graph="ann\tchild\tbob\nann\tchild"), Path())


def test_neighbourhood_has_all_triples_within_the_hops_in_both_directions() -> None:
    data, around = ann(2)
    found = {tuple(data.triples[t]): (int(s), bool(f)) for t, s, f in zip(around.triples, around.steps, around.forward)}
    named = {(data.entities[s], data.relations[r], data.entities[o]): value for (s, r, o), value in found.items()}
    assert named == {
        ("ann", "child", "bob"): (1, True),
        ("ann", "likes", "dan"): (1, True),
        ("bob", "born_in", "rome"): (2, True),
        ("dan", "likes", "dan"): (2, True),
    }
    data, around = ann(3)
    backward = around.triples[~around.forward]
    assert [data.entities[data.triples[t][0]] for t in backward] == ["cyd"]


def test_neighbourhood_records_the_relations_crossed_before_a_triple() -> None:
    data, around = ann(3)
    via = {tuple(data.triples[t]): way.tolist() for t, way in zip(around.triples, around.via)}
    child, born = (2 * data.relations.index(name) + 1 for name in ("child", "born_in"))
    names = {name: number for number, name in enumerate(data.entities)}
    italy = (names["rome"], data.relations.index("in"), names["italy"])
    assert via[italy] == [child, born]
    assert [way for triple, way in via.items() if triple[0] == names["ann"]] == [[-1, -1], [-1, -1]]


def test_neighbourhood_is_filled_up_with_random_triples_at_step_0() -> None:
    data, around = ann(2, fill=6)
    assert len(around.triples) == 6
    assert len(set(around.triples.tolist())) == 6
    assert around.steps.tolist()[4:] == [0, 0]
    assert np.array_equal(around.triples, neighbourhoods(data, 6, 0).triples)
    assert len(neighbourhoods(data, 100, 0).triples) == len(GRAPH)
    drawn = {tuple(neighbourhoods(data, 5, seed).triples[4:].tolist()) for seed in range(8)}
    assert len(drawn) > 1


def test_neighbourhood_larger_than_fill_is_not_cut() -> None:
    assert len(ann(3, fill=1)[1].triples) == 6


def slow_around(data: GraphQuestions, topic: int, hops: int) -> set[int]:
    """Reference: step by step, the triples that contain an entity reached so far."""
    reached, found = {topic}, set()
    for _ in range(hops):
        touched = np.isin(data.triples[:, [0, 2]], list(reached)).any(1)
        found |= set(np.flatnonzero(touched).tolist())
        reached |= set(data.triples[touched][:, [0, 2]].ravel().tolist())
    return found


def test_generated_questions_are_answered_with_the_planted_probability() -> None:
    data = generate(Planted(topics=400))
    rows, odds = data.odds or (np.zeros((0, 2)), np.zeros(0))
    np.testing.assert_allclose(np.bincount(rows[:, 0], odds), 1)
    named = rows[odds.reshape(len(data), -1).argmax(1) + np.arange(len(data)) * 6, 1]
    for number, (word, probability) in enumerate(SURE.items()):
        mine = data.type == number
        assert data.texts[int(np.flatnonzero(mine)[0])].startswith(word)
        assert (named == data.answer)[mine].mean() == pytest.approx(probability, abs=0.08)
    assert np.bincount(data.part).tolist() == [960, 320, 320]


@pytest.mark.slow
@pytest.mark.data("pathquestion")
def test_pathquestion_has_the_expected_sizes_and_neighbourhoods() -> None:
    data = load_questions("pathquestion", default_data_root())
    assert np.bincount(data.part).tolist() == [7821, 940, 970]
    assert len(data.triples) == 13_894
    around = neighbourhoods(data, 200, 0)
    for question in range(0, len(data), 977):
        rows = slice(*around.indptr[around.list_of[question] : around.list_of[question] + 2])
        near = set(around.triples[rows][around.steps[rows] > 0].tolist())
        assert near == slow_around(data, int(data.topic[question]), int(data.hops[question]))
        assert data.answer[question] in near
        assert len(around.triples[rows]) >= 200
