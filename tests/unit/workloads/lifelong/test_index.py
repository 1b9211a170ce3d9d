"""The append-only index: memory-mapped files, restore from a checkpoint, damaged files, files of other runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads.data.errors import DataError
from workloads.encoders.search import exact_topk
from workloads.lifelong.index import MANIFEST, Index, read_segment

DIM = 4


def rows(seed: int, count: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((count, DIM)).astype(np.float32)


def grown(folder: Path | None, sessions: int = 2, compatible: bool = True) -> Index:
    """Session s has the documents 10 s + 2, 10 s + 1, 10 s."""
    index = Index("ours", DIM, compatible, folder)
    for session in range(sessions):
        index.append(session, np.array([2, 1, 0]) + 10 * session, rows(session, 3))
    return index


@pytest.fixture(params=["memory", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "index" if request.param == "files" else None


def test_index_rows_keep_the_number_of_the_model_that_wrote_them(place: Path | None) -> None:
    index = grown(place)
    assert index.docs.tolist() == [2, 1, 0, 12, 11, 10]
    assert index.models.tolist() == [0, 0, 0, 1, 1, 1]
    expected = np.stack([rows(1, 3)[2], np.zeros(DIM, np.float32), rows(0, 3)[0]])
    np.testing.assert_array_equal(index.take(np.array([10, -1, 2])), expected)
    with pytest.raises(KeyError, match="not in the index"):
        index.take(np.array([3]))


def test_search_over_index_blocks_equals_search_over_all_rows(place: Path | None) -> None:
    index, queries = grown(place), torch.from_numpy(rows(9, 5))
    scores, found = exact_topk(queries, index.blocks(), 4)
    expected = (queries @ torch.from_numpy(index.vectors()).T).topk(4)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(found, expected.indices)


def test_reader_process_maps_the_segment_files_of_the_writer(tmp_path: Path) -> None:
    written = grown(tmp_path / "index")
    reader = Index("ours", DIM, True, tmp_path / "index", writes=False)
    for session in range(2):
        reader.append(session, np.array([2, 1, 0]) + 10 * session, rows(session, 3))
        assert reader._segments[-1].vectors.flags.writeable
        reader.map_last(tmp_path / "elsewhere")
        assert reader._segments[-1].vectors.flags.writeable  # in memory
        reader.map_last(written.folder)
        assert not reader._segments[-1].vectors.flags.writeable  # of the file
    np.testing.assert_array_equal(reader.vectors(), written.vectors())
    other = Index("ours", DIM, True, tmp_path / "index", writes=False)
    other.append(0, np.array([2, 1, 0]), rows(5, 3))
    other.map_last(written.folder)  # the files are of another run
    np.testing.assert_array_equal(other.vectors(), rows(5, 3))


def test_a_document_that_arrives_twice_is_refused(place: Path | None) -> None:
    index = grown(place)
    with pytest.raises(ValueError, match="a second time in session 2"):
        index.append(2, np.array([20, 11]), rows(2, 2))
    with pytest.raises(ValueError, match="a second time"):
        index.append(2, np.array([20, 20]), rows(2, 2))
    assert len(index) == 6


def test_incompatible_models_replace_all_rows_of_the_index(place: Path | None) -> None:
    index = Index("ours", DIM, False, place)
    index.append(0, np.array([1, 2]), rows(0, 2))
    index.append(1, np.array([1, 2, 3]), rows(1, 3))
    assert index.models.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(index.take(np.array([2])), rows(1, 3)[1:2])


def test_restore_removes_a_session_later_than_the_checkpoint(place: Path | None) -> None:
    """The process that wrote the session died before its checkpoint, so the session is repeated."""
    index = grown(place, sessions=1)
    state = index.state()
    index.append(1, np.array([10, 11, 12]), rows(7, 3))
    again = Index("ours", DIM, True, place)
    again.restore(state)
    assert again.docs.tolist() == [2, 1, 0]
    if place:
        assert [file.name for file in sorted(place.glob("*.arrow"))] == ["session-0000.arrow"]
        assert len(json.loads((place / MANIFEST).read_text())["segments"]) == 1
    again.append(1, np.array([12, 11, 10]), rows(1, 3))
    np.testing.assert_array_equal(again.vectors(), grown(None).vectors())


def test_restore_keeps_the_segment_files_of_earlier_models(tmp_path: Path) -> None:
    """This includes files whose rows a later model replaced, since registered versions still read them."""
    index = grown(tmp_path, sessions=3, compatible=False)
    assert [one["session"] for one in index.manifest] == [2]
    Index("ours", DIM, False, tmp_path).restore(index.state())
    assert len(list(tmp_path.glob("session-*.arrow"))) == 3


def test_second_index_gets_its_own_folder_and_each_state_restores_its_own(tmp_path: Path) -> None:
    first, second = grown(tmp_path / "index"), grown(tmp_path / "index", sessions=1)
    assert (first.folder, second.folder) == (tmp_path / "index", tmp_path / "index-2")
    for index, length in ((first, 6), (second, 3)):
        again = Index("ours", DIM, True, tmp_path / "index")
        again.restore(index.state())
        assert (len(again), again.folder) == (length, index.folder)
    assert len(list((tmp_path / "index").glob("*.arrow"))) == 2


@pytest.mark.parametrize("old", [False, True])
def test_restore_from_a_state_of_another_folder_copies_its_segments(tmp_path: Path, old: bool) -> None:
    """Population based training passes states to members whose parameters give the folder another name."""
    theirs = grown(tmp_path / ("ours" if old else "theirs"), sessions=1)
    state = theirs.state()
    theirs.append(1, np.array([10, 11, 12]), rows(7, 3))
    if old:  # a state of an earlier version, without the folder
        del state["folder"]
    mine = Index("ours", DIM, True, tmp_path / "mine")
    mine.restore(state)
    assert mine.folder == tmp_path / "mine"
    mine.append(1, np.array([12, 11, 10]), rows(1, 3))
    np.testing.assert_array_equal(mine.vectors(), grown(None).vectors())
    assert theirs.folder is not None
    np.testing.assert_array_equal(read_segment(theirs.folder / "session-0001.arrow").vectors, rows(7, 3))
    fresh = Index("ours", DIM, True, tmp_path / "fresh")
    fresh.restore(mine.state())
    assert len(fresh) == 6


def test_restore_removes_a_partial_segment_file_of_a_crash(tmp_path: Path) -> None:
    index = grown(tmp_path)
    (tmp_path / "session-0002.arrow").write_bytes((tmp_path / "session-0001.arrow").read_bytes()[:100])
    again = Index("ours", DIM, True, tmp_path)
    again.restore(index.state())
    assert again.models.tolist() == [0, 0, 0, 1, 1, 1]
    assert not (tmp_path / "session-0002.arrow").exists()


@pytest.mark.parametrize("length", [0, 50, -8])
def test_truncated_index_file_raises_an_error_that_names_it(tmp_path: Path, length: int) -> None:
    index, file = grown(tmp_path), tmp_path / "session-0001.arrow"
    content = file.read_bytes()
    file.write_bytes(content[:length])
    with pytest.raises(
        DataError, match=r"session-0001\.arrow: the index file is truncated or damaged.*start a new run"
    ):
        Index("ours", DIM, True, tmp_path).restore(index.state())


def test_flipped_bit_in_an_index_file_raises_a_checksum_error(tmp_path: Path) -> None:
    grown(tmp_path)
    file = tmp_path / "session-0000.arrow"
    content = bytearray(file.read_bytes())
    place = content.index(rows(0, 3).tobytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="its checksum differs"):
        read_segment(file)


def test_restore_refuses_index_files_of_another_run(tmp_path: Path) -> None:
    state = grown(tmp_path).state()
    other = Index("ours", DIM, True, tmp_path / "other")
    other.append(0, np.array([2, 1, 0]), rows(5, 3))
    (tmp_path / "other" / "session-0000.arrow").replace(tmp_path / "session-0000.arrow")
    with pytest.raises(DataError, match="not the one of the checkpoint"):
        Index("ours", DIM, True, tmp_path).restore(state)
    with pytest.raises(ValueError, match="belongs to another run"):
        Index("theirs", DIM, True, tmp_path).restore(state)
    with pytest.raises(ValueError, match="give the parameter index"):
        Index("ours", DIM, True).restore(state)


def test_missing_index_file_raises_data_error(tmp_path: Path) -> None:
    state = grown(tmp_path).state()
    (tmp_path / "session-0000.arrow").unlink()
    with pytest.raises(DataError, match="the index file is missing"):
        Index("ours", DIM, True, tmp_path).restore(state)
