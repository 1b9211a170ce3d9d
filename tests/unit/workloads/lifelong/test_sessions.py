"""Division of documents into sessions by topic, and collections of topics in the forms of BEIR, LoTTE and Multi-CPR."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from workloads.data.cache import default_data_root
from workloads.data.datasets import check
from workloads.data.errors import DataError
from workloads.data.retrieval.judged import Row, judged
from workloads.data.retrieval.topical import CLASSIC_IR, is_topical, own_topical
from workloads.data.retrieval.types import Retrieval
from workloads.lifelong.clusters import clusters
from workloads.lifelong.evaluation import forgetting, forward_transfer, saved
from workloads.lifelong.sessions import Stream, arrivals, build, query_topics, topics_of


def collection(sizes: tuple[int, ...] = (40, 30, 20), empty: int = 0) -> Retrieval:
    """Topic t has ``sizes[t]`` documents and one query, whose answer is the topic's first document."""
    ids = [f"t{topic}/{number}" for topic, size in enumerate(sizes) for number in range(size)]
    texts = [f"word{name.partition('/')[0]} w{number}" for number, name in enumerate(ids)]
    texts[:empty] = [" "] * empty
    queries = [f"t{topic}/q" for topic in range(len(sizes))]
    rows = [Row(name, name.replace("q", "0"), 1, "", Path(), 0) for name in queries]
    return judged((ids, texts), (queries, queries), rows)


def test_every_document_arrives_once_and_half_of_each_topic_in_session_0() -> None:
    found = build(collection(), Stream(sessions=3))
    assert np.bincount(found.session).tolist() == [45, 15, 15, 15]
    assert [int(((found.session == 0) & (found.topic == topic)).sum()) for topic in range(3)] == [20, 15, 10]
    assert sorted(found.until(3).tolist()) == list(range(90))
    assert sorted(found.main[1:].tolist()) == [0, 1, 2]


def test_session_takes_its_share_of_the_main_topic_or_all_that_is_left() -> None:
    found = build(collection((100, 100, 10)), Stream(sessions=3, main=0.6))
    shares = {}
    for session in (1, 2, 3):
        main = int(found.main[session])
        shares[main] = int((found.topic[found.arriving(session)] == main).sum())
    assert shares[0] >= 21
    assert shares[1] >= 21
    assert shares[2] == 5  # half of the 10 documents arrived in session 0


def test_queries_arrive_with_the_documents_of_their_topic() -> None:
    found = build(collection((200, 100, 60)), Stream(sessions=3))
    topics = np.repeat([0, 1, 2, -1], 1000).astype(np.int16)
    arrived = arrivals(found, topics, seed=0)
    for topic in range(3):
        own = found.session[found.topic == topic]
        expected = np.bincount(own, minlength=4) / len(own)
        np.testing.assert_allclose(np.bincount(arrived[topics == topic], minlength=4) / 1000, expected, atol=0.06)
    assert not arrived[topics == -1].any()
    assert np.array_equal(arrived, arrivals(found, topics, seed=0))
    assert not np.array_equal(arrived, arrivals(found, topics, seed=1))


def test_query_of_a_topic_without_text_arrives_in_session_0() -> None:
    data = collection((10, 20, 20), empty=10)
    found = build(data, Stream(sessions=2))
    arrived = arrivals(found, query_topics(data, found.topic), seed=0)
    assert arrived[0] == 0
    assert np.array_equal(arrived[1:], arrivals(found, np.array([-1, 1, 2], np.int16), seed=0)[1:])


def test_saved_share_is_relative_to_the_embeddings_of_a_rebuilt_index() -> None:
    assert saved([8, 2, 2, 2, 2], [8, 2, 2, 2, 2]).tolist() == pytest.approx(
        [0, 1 - 10 / 18, 1 - 12 / 30, 1 - 14 / 44, 1 - 1 / 3.75]
    )
    assert not saved([8, 10, 12], [8, 2, 2]).any()


def test_sessions_are_determined_by_the_seed() -> None:
    first, again, other = (build(collection(), Stream(seed=seed)) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_topics_repeat_if_there_are_more_sessions_than_topics() -> None:
    found = build(collection((40, 40)), Stream(sessions=4))
    assert sorted(found.main[1:].tolist()) == [0, 0, 1, 1]


def test_an_empty_document_never_arrives() -> None:
    found = build(collection(empty=3), Stream())
    assert found.session[:3].tolist() == [-1, -1, -1]
    assert len(found.until(4)) == 87


def test_a_session_without_documents_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves a session without documents: 9 of them have text, 5 are left"):
        build(collection((5, 4)), Stream(sessions=6))
    with pytest.raises(ValueError, match=r"9 are left after session 0\. Set fewer sessions or topics"):
        build(collection((1,) * 9), Stream(sessions=1))  # half of one document is none


def test_clusters_are_found_where_ids_name_no_topic() -> None:
    data = collection((30, 30, 30))
    words = [f"{'abc'[n // 30] * 3}{m}" for n in range(90) for m in range(1)]
    texts = [f"{words[n]} {'abc'[n // 30] * 4}{n % 5} {'abc'[n // 30] * 4}{n % 7} common" for n in range(90)]
    plain = replace(data, doc_ids=pa.array([str(n) for n in range(90)], pa.large_string()), docs=pa.array(texts))
    found = topics_of(plain, Stream(topics=3))
    assert found.shape == (90,)
    assert set(clusters(["one two", "", "three four"], 2, 0).tolist()) <= {0, 1}
    pure = [np.bincount(found[n : n + 30], minlength=3).max() for n in (0, 30, 60)]
    assert min(pure) >= 25
    with pytest.raises(ValueError, match="split_topics=91 is more than the 90 documents"):
        topics_of(plain, Stream(topics=91))


def test_ids_that_name_too_many_topics_are_refused() -> None:
    """Ids of web pages are an example, where each site would be a topic."""
    ids = [f"site{number}.org/page" for number in range(2**15)]
    pages = replace(collection(), doc_ids=pa.array(ids, pa.large_string()))
    with pytest.raises(ValueError, match=r"ids name 32,768 topics before their first slash, as 'site0.org', and at"):
        topics_of(pages, Stream())


def test_a_query_has_the_topic_of_its_relevant_documents() -> None:
    data = collection()
    assert query_topics(data, topics_of(data, Stream())).tolist() == [0, 1, 2]


def test_forgetting_and_forward_transfer_match_hand_computed_values() -> None:
    nan = np.nan
    matrix = np.array([[0.5, 0.2, nan], [0.8, 0.1, nan], [0.6, 0.4, 0.9]])
    assert forgetting(matrix) == pytest.approx(((0.8 - 0.6) + (0.2 - 0.4)) / 2)
    assert forgetting(matrix[:1]) == 0.0
    main = np.array([-1, 0, 1])
    bm25 = np.full((3, 3), 0.3)
    assert forward_transfer(matrix, bm25, main) == pytest.approx(((0.5 - 0.3) + (0.1 - 0.3)) / 2)
    assert forward_transfer(matrix[:0], bm25, main) == 0.0


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


LOTTE = {
    "collection__tsv": "0\tfirst text\n1\tsecond text\n",
    "questions__forum__tsv": "7\twhich one\n",
    "qas__forum__jsonl": json.dumps({"qid": 7, "query": "which one", "answer_pids": [1]}) + "\n",
}
CPR = {
    "corpus__tsv": "1\tein Text\n2\tnoch einer\n",
    "train__query__txt": "1\twelcher\n",
    "qrels__train__tsv": "1\t0\t2\t1\n",
    "dev__query__txt": "1\twelcher noch\n",
    "qrels__dev__tsv": "1\t0\t1\t1\n",
}


def test_lotte_and_multi_cpr_are_read_as_topics_of_one_collection(tmp_path: Path) -> None:
    written(tmp_path / "law", **LOTTE)
    written(tmp_path / "shop", **CPR)
    assert is_topical(tmp_path)
    known = own_topical(str(tmp_path), tmp_path)
    data = known.reader(tmp_path)
    assert data.doc_ids.to_pylist() == ["law/0", "law/1", "shop/1", "shop/2"]
    assert data.query_ids.to_pylist() == ["law/forum-7", "shop/train-1", "shop/dev-1"]
    assert data.judgements.tolist() == [[0, 1, 1], [1, 3, 1], [2, 2, 1]]
    assert data.parts.tolist() == [0, 1, 3]
    assert len(known.files) == 8


def test_document_ids_of_a_single_folder_have_no_topic_prefix(tmp_path: Path) -> None:
    known = own_topical("x", written(tmp_path, **CPR))
    assert known.reader(tmp_path).doc_ids.to_pylist() == ["1", "2"]
    assert not is_topical(tmp_path / "nowhere")


def test_collection_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "law", **LOTTE)
    written(tmp_path / "shop", **CPR)
    (tmp_path / "law/qas.forum.jsonl").rename(tmp_path / "law/moved")
    with pytest.raises(DataError, match=r"law: the topic is not complete: got collection\.tsv, questions\.forum\.tsv"):
        own_topical("x", tmp_path)
    (tmp_path / "law/moved").rename(tmp_path / "law/qas.forum.jsonl")
    (tmp_path / "shop/train.query.txt").unlink()
    with pytest.raises(DataError, match=r"train\.query\.txt: a file is missing: got qrels\.train\.tsv without it"):
        own_topical("x", tmp_path)
    (tmp_path / "shop/train.query.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"shop/train\.query\.txt: the file of .* is missing"):
        check(str(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"collection__tsv": "no tab\n"}, "line 1: the line holds no text"),
        ({"collection__tsv": "0\ta\n0\tb\n"}, "line 2: an id occurs twice"),
        ({"qas__forum__jsonl": "{}\n"}, "line 1: the line holds no answers"),
    ],
)
def test_damaged_line_raises_data_error_with_its_number(tmp_path: Path, files: dict[str, str], message: str) -> None:
    folder = written(tmp_path, **{**LOTTE, **files})
    with pytest.raises(DataError, match=message):
        own_topical("x", folder).reader(folder)


@pytest.mark.data("classic-ir")
def test_classic_ir_has_the_expected_sizes_topics_and_session_shares() -> None:
    data = CLASSIC_IR.reader(CLASSIC_IR.folder_in(default_data_root()))
    assert (len(data.docs), int(data.answered.sum())) == (7520, 465)
    found = build(data, Stream())
    assert len(np.unique(found.topic)) == 5
    shares = [float((found.topic[found.arriving(s)] == found.main[s]).mean()) for s in range(1, 5)]
    # MEDLINE has fewer documents left than 70% of a session.
    assert sorted(shares)[0] == pytest.approx(516 / 940, abs=0.01)
    assert min(sorted(shares)[1:]) >= 0.699
    assert np.abs(np.diff([len(found.arriving(session)) for session in range(1, 5)])).max() <= 1
