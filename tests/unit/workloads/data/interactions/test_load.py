"""Interactions are converted once and then memory-mapped, also with several processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.waiting import HANG_SECONDS
from workloads.data import (
    DATASETS,
    CacheUnwritable,
    DataError,
    Dataset,
    Interactions,
    SourceFile,
    conversion_cache,
    load_interactions,
)
from workloads.data.interactions import load
from workloads.data.interactions.arrow import read_interactions, write_interactions

N_ROWS = 20_000


def read_and_count(folder: Path) -> Interactions:
    """Compute rows from the seed in the file, and append a character to ``conversions`` at each call."""
    with (folder / "conversions").open("a") as marks:
        marks.write("x")
    rng = np.random.default_rng(int((folder / "seed.txt").read_text()))
    pairs = rng.integers(0, 100, (N_ROWS, 2)).astype(np.int32)
    return Interactions(100, 100, pairs[:-5], pairs[-5:], rng.random(N_ROWS - 5, np.float32))


def register(content: bytes) -> None:
    source = SourceFile("seed.txt", len(content), hashlib.sha256(content).hexdigest(), "https://localhost/seed.txt")
    known = Dataset("counted", "a reader that counts", "interactions", read_and_count, (source,))
    DATASETS["counted"] = known  # type: ignore[index]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    conversion_cache.load_or_convert.cache_clear()
    (tmp_path / "counted").mkdir()
    (tmp_path / "counted" / "seed.txt").write_bytes(b"1")
    register(b"1")
    yield tmp_path
    del DATASETS["counted"]  # type: ignore[attr-defined]
    conversion_cache.load_or_convert.cache_clear()


def conversions(root: Path) -> int:
    return len((root / "counted" / "conversions").read_text())


def converted(root: Path) -> list[Path]:
    return sorted((root / "cache" / "interactions").glob("*.arrow"))


def assert_same(left: Interactions, right: Interactions) -> None:
    assert (left.n_users, left.n_items) == (right.n_users, right.n_items)
    assert left.arrays().keys() == right.arrays().keys()
    for name, array in left.arrays().items():
        np.testing.assert_array_equal(array, right.arrays()[name], strict=True)


def test_dataset_is_converted_once_and_kept_in_the_process(root: Path) -> None:
    first = load_interactions("counted", root)
    assert load_interactions("counted", root) is first
    conversion_cache.load_or_convert.cache_clear()
    again = load_interactions("counted", root)
    assert again is not first
    assert conversions(root) == 1
    assert_same(again, read_and_count(root / "counted"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_arrays_are_memory_mapped_and_read_only(root: Path) -> None:
    data = load_interactions("counted", root)
    (file,) = converted(root)
    spans = [
        [int(bound, 16) for bound in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(file))
    ]
    assert spans
    for array in data.arrays().values():
        address = array.__array_interface__["data"][0]
        assert any(start <= address < end for start, end in spans)
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned


def test_changed_source_is_converted_again(root: Path) -> None:
    before = load_interactions("counted", root)
    (root / "counted" / "seed.txt").write_bytes(b"22")
    register(b"22")
    after = load_interactions("counted", root)
    assert not np.array_equal(before.train, after.train)
    assert len(converted(root)) == 2


def test_a_damaged_source_is_refused_although_converted_before(root: Path) -> None:
    load_interactions("counted", root)
    (root / "counted" / "seed.txt").write_bytes(b"2")
    with pytest.raises(DataError, match="checksum differs"):
        load_interactions("counted", root)


def test_a_broken_cache_file_is_rebuilt(root: Path) -> None:
    whole = load_interactions("counted", root)
    (file,) = converted(root)
    content = file.read_bytes()
    damages = [b"", b"ARROW1", content[: len(content) // 2], content[:-1], bytes(len(content))]
    rng = np.random.default_rng(0)
    # One damaged byte in the schema, the values or the footer.
    for place in [
        *range(0, 1500, 97),
        *rng.integers(0, len(content), 20),
        *range(len(content) - 900, len(content), 61),
    ]:
        damages.append(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
    for damaged in damages:
        conversion_cache.load_or_convert.cache_clear()
        file.unlink()  # not written in place: `whole` still maps the old file
        file.write_bytes(damaged)
        assert_same(load_interactions("counted", root), whole)
    assert conversions(root) > len(damages) // 2  # a changed byte of padding does no damage


def _load_in_child(root: Path, cache: str, queue: Any) -> None:
    os.environ["ORCHESTRATOR_CACHE"] = cache
    register(b"1")
    data = load_interactions("counted", root)
    queue.put(hashlib.sha256(data.train.tobytes() + data.test.tobytes()).hexdigest())


@pytest.mark.slow
def test_many_processes_at_once_convert_once(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    arguments = (root, str(root / "cache"), queue)
    processes = [context.Process(target=_load_in_child, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    seen = {queue.get(timeout=HANG_SECONDS) for _ in processes}
    for process in processes:
        process.join(HANG_SECONDS)
    assert conversions(root) == 1
    data = read_and_count(root / "counted")
    assert seen == {hashlib.sha256(data.train.tobytes() + data.test.tobytes()).hexdigest()}


def test_every_array_is_unchanged_after_writing_and_reading(tmp_path: Path) -> None:
    truth = np.arange(15).reshape(3, 5) % 2 == 0
    pairs = np.array([[0, 1], [2, 4], [1, 3]], np.int32)
    ratings = np.array([1.5, 5, 3], np.float32)
    names = np.array(["a", "émile", "x" * 40])
    data = Interactions(
        3, 5, pairs, pairs[:0], ratings, ratings[:0], truth,
        train_times=np.array([5, 2**40, -1]), test_times=np.array([], np.int64), noise=pairs[:, 0] > 1,
        held_out=pairs[:, 0] > 0,
        user_ids=np.char.encode(names, "utf-8"), item_ids=np.array([-5, 2**62, 3, 7, 8]),
    )  # fmt: skip
    assert len(data.arrays()) == len(fields(data)) - 2
    write_interactions(tmp_path / "x.arrow", data)
    mapped = read_interactions(tmp_path / "x.arrow")
    assert mapped is not None
    assert_same(mapped, data)


def test_variant_of_a_large_dataset_is_computed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_interactions("counted", root, noise=0.01)
    monkeypatch.setattr(load, "CACHED_FROM", 1)
    load._variant.cache_clear()
    found = load_interactions("counted", root, noise=0.01)
    assert len(list((root / "cache").rglob("*-official-0.01-*.arrow"))) == 1
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], array, strict=True)
    load._variant.cache_clear()
    monkeypatch.setattr(load, "write_interactions", lambda *args: pytest.fail("made again"))
    assert len(load_interactions("counted", root, noise=0.01).train) == len(expected.train)
    with pytest.raises(pytest.fail.Exception):
        load_interactions("counted", root, noise=0.02)


def test_each_min_rating_is_cached_in_its_own_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = root / "own.csv"
    table.write_text("user,item,rating\n" + "".join(f"{row % 9},{row // 9},{1 + row % 5}\n" for row in range(99)))
    monkeypatch.setattr(load, "CACHED_FROM", 1)
    found = {least: load_interactions(str(table), root, min_rating=least) for least in (None, 1.0, 4.0)}
    assert_same(found[None], found[1.0])
    assert len(found[4.0].train) + len(found[4.0].test) == sum(row % 5 >= 3 for row in range(99))
    files = sorted(file.name.partition("v3-")[2] for file in converted(root))
    version = f"v{load.VARIANTS}.arrow"
    assert files == ["", *(f"official-0.0-{least}{version}" for least in ("from-1.0-", "from-4.0-", ""))]
    identities = {load.variant_identity(str(table), root, "official", 0.0, least) for least in found}
    assert len(identities) == 3


def test_unwritable_cache_raises_cache_unwritable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(root / "counted" / "seed.txt"))
    with pytest.raises(CacheUnwritable, match=r"cannot be written.*ORCHESTRATOR_CACHE"):
        load_interactions("counted", root)


def test_dataset_of_images_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Dataset("pictures", "none", "images", lambda folder: folder)
    monkeypatch.setitem(DATASETS, "pictures", images)
    with pytest.raises(DataError, match="got images; expected interactions"):
        load_interactions("pictures", root)
