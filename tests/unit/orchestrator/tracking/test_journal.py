"""The queue on disk: order, memory, damage, a full disk, and the batches that are made from it."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.tracking import journal
from orchestrator.tracking.journal import HELD, Journal, batches
from tests.support.tracked import full_disk
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tracking.jsonl"


def log(key: str, *epochs: int) -> dict[str, Any]:
    return {"op": "log", "key": key, "rows": [[epoch, 1000 + epoch, {"loss": epoch / 8}] for epoch in epochs]}


def drain(queue: Journal) -> list[dict[str, Any]]:
    """All waiting operations, without their format."""
    queue.finish()
    found = []
    while taken := queue.take():
        found += [{name: value for name, value in operation.items() if name != "format"} for operation in taken]
        queue.forget()
    return found


def test_operations_are_taken_in_order_and_the_file_is_emptied(file: Path) -> None:
    queue = Journal(file)
    put = [log("a", epoch) for epoch in range(1, 4)]
    for operation in put:
        queue.put(**operation)
    first = queue.take()
    assert [operation["rows"] for operation in first] == [operation["rows"] for operation in put]
    queue.put(**log("a", 4))
    assert not queue.empty()
    queue.forget()
    assert drain(queue) == [log("a", 4)]
    assert queue.empty()
    assert file.stat().st_size == 0
    queue.close()
    assert not file.exists()


def test_depth_counts_the_operations_not_delivered(file: Path) -> None:
    queue = Journal(file)
    for epoch in range(5):
        queue.put(**log("a", epoch))
    assert queue.depth == 5
    queue.take()
    queue.put(**log("a", 6))
    assert queue.depth == 6, "taken operations are not delivered yet"
    queue.forget()
    assert queue.depth == 1
    queue.put(**log("b", 1))
    queue.close()
    after = Journal(file)
    assert after.depth == 7, "operations of unknown delivery are sent again"
    drain(after)
    assert after.depth == 0


def test_depth_includes_operations_that_a_full_disk_does_not_store(file: Path) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    with full_disk(file):
        queue.put(**log("a", 2))
        queue.put(**log("a", 3))
    assert queue.depth == 3
    drain(queue)
    assert queue.depth == 0


def test_operations_taken_but_not_delivered_are_read_by_the_next_journal(file: Path) -> None:
    queue = Journal(file)
    for epoch in (1, 2):
        queue.put(**log("a", epoch))
    queue.take()
    queue.put(**log("a", 3))
    queue.close()
    assert drain(Journal(file)) == [log("a", epoch) for epoch in (1, 2, 3)]


def test_memory_stays_bounded_while_many_operations_wait(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "WINDOW", journal.WINDOW // 8)
    queue = Journal(file)
    queue.put(**log("a", 0))
    tracemalloc.start()
    try:
        for epoch in range(1, 2_501):
            queue.put(**log("a", epoch))
        queue.finish()
        while queue.take():
            queue.forget()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.stat().st_size == 0
    assert peak < 20 * journal.WINDOW, "memory must hold windows, not the file"


def test_windows_follow_each_other_without_a_gap(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "WINDOW", 200)
    queue = Journal(file)
    long = {"op": "start", "key": "b", "params": {"text": "x" * 5000}}  # longer than a window
    put = [log("a", 1), log("a", 2), log("a", 3), long, log("a", 4), log("ü", 5)]
    for operation in put:
        queue.put(**operation)
    assert len(queue.take()) < len(put)
    assert drain(queue) == put


def test_a_reader_waits_and_is_woken(file: Path) -> None:
    queue = Journal(file)
    taken: list[Any] = []
    reader = threading.Thread(target=lambda: taken.extend(queue.take()), daemon=True)
    reader.start()
    queue.put(**log("a", 1))
    reader.join(HANG_SECONDS)
    assert [operation["key"] for operation in taken] == ["a"]
    queue.forget()
    reader = threading.Thread(target=lambda: taken.append(queue.take()), daemon=True)
    reader.start()
    queue.finish()
    reader.join(HANG_SECONDS)
    assert taken[-1] == []


@pytest.mark.parametrize("damage", [b'{"op": "log", "key"\n', b"\x00\xff\xfe\n", b"[1, 2]\n", b"\n"])
def test_damaged_line_is_skipped_and_other_lines_are_read(damage: bytes, file: Path) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    queue.close()
    with file.open("ab") as stream:
        stream.write(damage)
    queue = Journal(file)
    queue.put(**log("a", 2))
    assert [operation for operation in drain(queue) if operation["op"] != "none"] == [log("a", 1), log("a", 2)]


def test_half_a_line_is_cut_off_however_long_it_is(file: Path) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    queue.close()
    with file.open("ab") as stream:
        stream.write(b'{"op": "start", "text": "' + b"x" * 200_000)
    queue = Journal(file)
    queue.put(**log("a", 2))
    assert drain(queue) == [log("a", 1), log("a", 2)]
    file.write_bytes(b"no line at all")
    assert drain(Journal(file)) == []


def test_journal_of_another_format_raises_user_error(file: Path) -> None:
    file.write_text(json.dumps({"format": 99, "op": "log"}) + "\n")
    with pytest.raises(UserError, match=r"another format: got 99"):
        Journal(file)
    file.write_text(json.dumps({"op": "log", "key": "a", "rows": []}) + "\n")  # from before formats were written
    assert drain(Journal(file)) == [{"op": "log", "key": "a", "rows": []}]


def test_order_of_operations_is_kept_on_a_full_disk(file: Path) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    with full_disk(file, room=30):  # there is room for half a line
        for epoch in (2, 3):
            queue.put(**log("a", epoch))
    queue.put(**log("a", 4))  # there is room again, but the waiting operations come first
    assert (queue.lost, queue.trouble) == (0, "File too large")
    assert drain(queue) == [log("a", epoch) for epoch in (1, 2, 3, 4)]
    queue.put(**log("a", 5))
    assert file.stat().st_size > 0
    assert drain(queue) == [log("a", 5)]


def test_operations_in_memory_are_stored_once_the_disk_has_room(file: Path) -> None:
    queue = Journal(file)
    with full_disk(file):
        queue.put(**log("a", 1))
        queue.put(**log("a", 2))
    for epoch in range(3, HELD + 10):
        queue.put(**log("a", epoch))
    assert queue.lost == 0
    killed = Journal(file)  # opened after a process that could not close its journal
    assert drain(killed) == [log("a", epoch) for epoch in range(1, HELD + 10)]


@pytest.mark.parametrize("further", [0, 1])
def test_postponed_operation_is_kept_and_delivered_last(further: int, file: Path) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    queue.put(**log("a", 2))
    (first, _) = queue.take()
    for epoch in range(3, 3 + further):
        queue.put(**log("a", epoch))
    queue.forget([first])
    assert queue.depth == 1 + further
    killed = Journal(file)
    queue.close()
    assert drain(killed)[-1] == log("a", 1)


def test_operation_sent_from_memory_is_not_stored_again(file: Path) -> None:
    queue = Journal(file)
    with full_disk(file):
        queue.put(**log("a", 1))
    assert len(queue.take()) == 1
    queue.put(**log("a", 2))
    queue.forget()
    assert drain(queue) == [log("a", 2)]


def test_a_full_disk_and_an_outage_lose_reports_and_count_them(file: Path) -> None:
    queue = Journal(file)
    with full_disk(file):
        begun = time.monotonic()
        for epoch in range(1, HELD + 11):
            queue.put(**log("a", epoch))
        queue.put(op="end", key="a", status="FINISHED")
        assert time.monotonic() - begun < HANG_SECONDS
        assert queue.lost == 10
        kept = queue.take()
        assert len(kept) == HELD + 1
        assert kept[-1]["op"] == "end", "the end of a run is always kept"
        queue.close()
    assert queue.lost == HELD + 11
    assert not file.exists()


@pytest.mark.parametrize("room", [0, 30])  # nothing of the next line is written, or half of it
def test_operations_in_memory_are_stored_on_close_if_the_disk_has_room(file: Path, room: int) -> None:
    queue = Journal(file)
    queue.put(**log("a", 1))
    whole = file.read_bytes()
    with full_disk(file, room):
        queue.put(**log("a", 2))
        assert file.read_bytes() == whole, "half a line is left behind"
        queue.put(**log("a", 3))
    queue.close()
    assert queue.lost == 0
    assert [json.loads(line)["rows"][0][0] for line in file.read_text().splitlines()] == [1, 2, 3]
    assert drain(Journal(file)) == [log("a", epoch) for epoch in (1, 2, 3)]


def test_interleaved_rows_of_several_runs_are_merged_per_run() -> None:
    turns = [log(key, epoch) for epoch in range(1, 51) for key in "abcd"]
    assert batches(turns) == [log(key, *range(1, 51)) for key in "abcd"]


def test_end_between_rows_of_a_run_is_not_moved_by_the_merge() -> None:
    end, tag = {"op": "end", "key": "a"}, {"op": "tag", "key": "b", "tags": {"x": "1"}}
    given = [{"op": "start", "key": "a"}, log("a", 1), log("b", 1), log("a", 2), end, log("b", 2), log("a", 3), tag]
    begun = {"op": "start", "key": "a", "rows": log("a", 1, 2)["rows"]}
    assert batches(given) == [begun, log("b", 1, 2) | {"set_tags": {"x": "1"}}, end, log("a", 3)]
    assert given[:2] == [{"op": "start", "key": "a"}, log("a", 1)], "the input must not change"


def test_later_value_of_a_tag_replaces_the_earlier_one() -> None:
    first, second = ({"op": "tag", "key": "a", "tags": {"state": state}} for state in ("running", "complete"))
    (merged,) = batches([first, log("a", 1), second])
    assert merged == log("a", 1) | {"set_tags": {"state": "complete"}}


def test_a_delivery_that_ends_after_the_close_is_repeated(file: Path) -> None:
    """For example that of a large file to a slow store. Its thread must not end with an error on the terminal."""
    queue = Journal(file)
    queue.put(**log("a", 1))
    queue.take()
    queue.finish()
    queue.close()
    queue.forget(later=[log("a", 2)])
    assert queue.take() == []
    assert drain(Journal(file)) == [log("a", 1)]
