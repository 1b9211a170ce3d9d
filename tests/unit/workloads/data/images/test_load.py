"""Loading of image datasets: corrupt images, the cache of decoded images, the splits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.support.pictures import class_folders, picture
from workloads.data import DataError, ReadOptions, check_readable, fingerprint, verify
from workloads.data.cache import cache_dir
from workloads.data.images import convert, load, progress
from workloads.data.images import resident as prepared_module
from workloads.data.images.load import load_images
from workloads.data.images.resident import ImageData, ImagePart, prepare
from workloads.data.images.types import Images

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a test's images, separate from its cache."""
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


def prepared(data: Images, holdout: bool = True, split_seed: int = 0) -> ImageData:
    return prepare(data, split_seed, holdout, CPU)


def rows(part: ImagePart) -> list[int]:
    return part.rows.tolist()


# From a folder to arrays


def test_class_folders_become_arrays_in_the_order_of_their_names(folder: Path) -> None:
    class_folders(folder / "train", {"b": 3, "a": 2})
    class_folders(folder / "test", {"a": 1, "b": 1})
    (folder / "train" / "a" / "notes.txt").write_text("no image")
    images = load_images(str(folder), folder)
    assert images.classes == ("a", "b")
    assert images.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert images.test.labels.tolist() == [0, 1]
    expected = [picture(name, place).transpose(2, 0, 1) for name, place in (("a", 0), ("a", 1), ("b", 0))]
    assert (images.train.images[:3] == np.stack(expected)).all()
    assert images.size == 8


def test_images_of_different_sizes_are_refused_without_dataset_size(folder: Path) -> None:
    class_folders(folder, {"a": 2, "b": 2})
    Image.new("RGB", (9, 7)).save(folder / "b" / "1.png")
    with pytest.raises(DataError, match=r"got 9 x 7 pixels in .*b/1\.png; expected 8 x 8, as .* Set dataset_size"):
        load_images(str(folder), folder)
    assert load_images(str(folder), folder, size=6).train.images.shape == (4, 3, 6, 6)
    Image.new("RGB", (9, 7)).save(folder / "a" / "0.png")
    with pytest.raises(DataError, match=r"got 9 x 7 pixels in .*a/0\.png; expected a square"):
        load_images(str(folder), folder)


def test_error_names_a_corrupt_image(folder: Path) -> None:
    class_folders(folder, {"a": 100, "b": 100})
    bad = folder / "b" / "77.png"
    bad.write_bytes(bad.read_bytes()[:40])
    for refuse in (load_images, check_readable):
        with pytest.raises(DataError, match=r"cannot be decoded: got .*b/77\.png \(.*\)\. .*dataset_corrupt=skip"):
            refuse(str(folder), folder)
    assert not list((cache_dir() / "images").glob("*/index.json"))


def test_corrupt_images_are_left_out_and_listed_with_corrupt_skip(folder: Path) -> None:
    class_folders(folder, {"a": 10, "b": 10})
    for name in ("a/0.png", "b/4.png"):
        (folder / name).write_bytes(b"")
    check_readable(str(folder), folder, ReadOptions(corrupt="skip"))
    images = load_images(str(folder), folder, corrupt="skip")
    assert [name.split(" ")[0] for name in images.skipped] == [str(folder / "a/0.png"), str(folder / "b/4.png")]
    assert images.train.rows.tolist() == [*range(1, 14), *range(15, 20)]
    split = prepared(images)
    assert split.skipped == images.skipped
    assert sorted(rows(split.train) + rows(split.validation) + rows(split.test)) == images.train.rows.tolist()
    black = split.train.images.flatten(1).sum(1) == 0
    assert black.nonzero().flatten().tolist() == [0, 14], "without black images the check below has no effect"
    for part in (split.train, split.validation, split.test):
        assert part.take(torch.arange(len(part))).flatten(1).sum(1).min() > 0
    with pytest.raises(DataError, match=r"cannot be decoded: got .*a/0\.png"):
        load_images(str(folder), folder)  # the cached images were converted with corrupt="skip"


def test_dataset_without_a_decodable_image_raises_data_error(folder: Path) -> None:
    class_folders(folder, {"a": 1, "b": 1})
    for name in ("a", "b"):
        (folder / name / "0.png").write_bytes(b"")
    for size in (None, 8):
        with pytest.raises(DataError, match="no image of the train part can be decoded"):
            load_images(str(folder), folder, size, "skip")


# The cache


def test_images_are_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(folder, {"a": 3, "b": 3})
    first = load_images(str(folder), folder)
    assert load_images(str(folder), folder) is first
    load._load.cache_clear()
    monkeypatch.setattr(load, "convert", None)
    again = load_images(str(folder), folder)
    assert again is not first
    assert isinstance(again.train.images, np.memmap)
    assert same(first, again)


@pytest.mark.parametrize("file", ["train.npy", "train-labels.npy", "index.json"])
def test_a_damaged_cache_is_rebuilt(folder: Path, file: str) -> None:
    class_folders(folder, {"a": 3, "b": 3})
    first = load_images(str(folder), folder)
    load._load.cache_clear()
    (path,) = (cache_dir() / "images").glob(f"*/{file}")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.unlink()  # the memory map of the first load keeps the old content
    path.write_bytes(damaged)
    assert same(first, load_images(str(folder), folder))


def test_each_image_size_is_cached_separately(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(folder, {"a": 3, "b": 3})
    first = [load_images(str(folder), folder, size) for size in (None, 4, 5)]
    assert [images.size for images in first] == [8, 4, 5]
    load._load.cache_clear()
    monkeypatch.setattr(load, "convert", None)
    assert all(same(one, load_images(str(folder), folder, size)) for one, size in zip(first, (None, 4, 5)))


def test_concurrent_loads_decode_the_images_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(folder, {"a": 20, "b": 20})
    calls = []
    convert = load.convert
    monkeypatch.setattr(load, "convert", lambda *given: calls.append(1) or convert(*given))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load_images(str(folder), folder), range(4)))
    assert len(calls) == 1
    assert all(same(found[0], other) for other in found)


@pytest.mark.parametrize("damaged", [False, True])
def test_interrupted_conversion_resumes_unless_its_progress_is_damaged(
    folder: Path, damaged: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class_folders(folder, {"a": 150, "b": 150})
    (folder / "a" / "0.png").write_bytes(b"not an image")
    decode = convert.decode
    advance = progress.Progress.advance

    def until_killed(self: progress.Progress, part: str, *of: Any) -> None:
        advance(self, part, *of)
        if self.begin(part, 300).done >= 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress, "SAVE_SECONDS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "advance", until_killed)
        with pytest.raises(KeyboardInterrupt):
            load_images(str(folder), folder, 8, "skip")
    (draft,) = (cache_dir() / "images").glob(".*.part")
    done = json.loads((draft / "progress.json").read_text())["train"]["done"]
    assert 0 < done < 300
    assert f"Converting pictures: {done} of 300 images of train, about" in capsys.readouterr().err
    if damaged:
        (draft / "progress.json").write_text("[")
    again: list[object] = []
    monkeypatch.setattr(convert, "decode", lambda content: again.append(content) or decode(content))
    found = load_images(str(folder), folder, 8, "skip")
    assert len(again) == 300 - (0 if damaged else done)
    shutil.rmtree(cache_dir() / "images")
    load._load.cache_clear()
    assert same(found, load_images(str(folder), folder, 8, "skip"))
    assert found.skipped == (f"{folder / 'a' / '0.png'} (it is in no format that is known)",)


def test_full_disk_raises_data_error_and_leaves_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(folder, {"a": 3, "b": 3})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"No space left on device.*ORCHESTRATOR_CACHE"):
        load_images(str(folder), folder)
    assert not [path for path in (cache_dir() / "images").iterdir() if path.is_dir()]


def test_fingerprint_changes_if_a_file_changes_or_moves(folder: Path) -> None:
    class_folders(folder, {"a": 3, "b": 3})
    first = fingerprint(str(folder), folder)
    assert fingerprint(str(folder), folder) == first
    Image.new("RGB", (8, 8), "red").save(folder / "b" / "1.png")
    second = fingerprint(str(folder), folder)
    (folder / "b" / "2.png").rename(folder / "a" / "z.png")
    assert len({first, second, fingerprint(str(folder), folder)}) == 3
    assert verify(str(folder), folder) == []


def test_fingerprint_changes_with_files_behind_symbolic_links(folder: Path, tmp_path: Path) -> None:
    """Links to class folders and to folders in them are followed; a link to a parent folder is not."""
    class_folders(tmp_path / "elsewhere", {"a": 3, "b": 3, "more": 2})
    for name in ("a", "b"):
        (folder / name).symlink_to(tmp_path / "elsewhere" / name)
    (tmp_path / "elsewhere" / "a" / "more").symlink_to(tmp_path / "elsewhere" / "more")
    (tmp_path / "elsewhere" / "b" / "all").symlink_to(folder)
    first = fingerprint(str(folder), folder)
    images = load_images(str(folder), folder)
    assert images.train.labels.tolist() == [0] * 5 + [1] * 3
    assert (images.train.images[3] == picture("more", 0).transpose(2, 0, 1)).all()
    for name in ("a/1", "more/1"):
        Image.new("RGB", (8, 8), "red").save(tmp_path / "elsewhere" / f"{name}.png")
        changed = fingerprint(str(folder), folder)
        assert changed != first
        first = changed
    assert (load_images(str(folder), folder).train.images[[1, 4], 0] == 255).all()


# The splits


def test_validation_is_a_stratified_tenth(folder: Path) -> None:
    class_folders(folder / "train", {"a": 40, "b": 20})
    class_folders(folder / "test", {"a": 1, "b": 1})
    data = load_images(str(folder), folder)
    split = prepared(data)
    assert [len(part) for part in (split.train, split.validation, split.test)] == [54, 6, 2]
    assert split.validation.labels.bincount().tolist() == [4, 2]
    assert sorted(rows(split.train) + rows(split.validation)) == list(range(60))
    assert rows(prepared(data).validation) == rows(split.validation)
    assert rows(prepared(data, split_seed=1).validation) != rows(split.validation)
    refit = prepared(data, holdout=False)
    assert (len(refit.train), len(refit.validation)) == (60, 0)


def test_without_a_test_part_the_same_fifth_is_test_for_every_seed(folder: Path) -> None:
    class_folders(folder, {"a": 20, "b": 20})
    data = load_images(str(folder), folder)
    splits = [prepared(data, holdout, seed) for holdout, seed in ((True, 0), (True, 1), (False, 0))]
    assert splits[0].test.labels.bincount().tolist() == [4, 4]
    assert rows(splits[0].test) == rows(splits[1].test) == rows(splits[2].test)
    for split in splits:
        assert sorted(rows(split.train) + rows(split.validation) + rows(split.test)) == list(range(40))


def test_holdout_without_two_images_of_any_class_raises_data_error(folder: Path) -> None:
    class_folders(folder / "train", {"a": 1, "b": 1})
    class_folders(folder / "test", {"a": 1, "b": 1})
    data = load_images(str(folder), folder)
    with pytest.raises(DataError, match="no class has two labelled images"):
        prepared(data)
    assert len(prepared(data, holdout=False).train) == 2


def test_unlabelled_images_are_only_in_the_train_split(folder: Path) -> None:
    class_folders(folder, {"a": 20, "b": 20})
    data = load_images(str(folder), folder)
    labels = np.append(data.train.labels[:30], np.full(10, -1))
    data = replace(data, train=replace(data.train, labels=labels))
    split = prepared(data)
    assert split.validation.labels.min() >= 0
    assert split.test.labels.min() >= 0
    assert (split.train.labels == -1).sum() == 10


def test_part_returns_its_images_in_the_order_of_the_index(folder: Path) -> None:
    class_folders(folder, {"a": 20, "b": 20})
    part = prepared(load_images(str(folder), folder)).train
    index = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
    for place, image in zip(index.tolist(), part.take(index)):
        row = rows(part)[place]
        name, number = ("a", row) if row < 20 else ("b", row - 20)
        order = sorted(range(20), key=str)  # files are in the order of their names
        assert (image.numpy() == picture(name, order[number]).transpose(2, 0, 1)).all()
        assert part.labels[place] == "ab".index(name)
    streamed = torch.cat(list(part.stream(index.split(7))))
    assert torch.equal(streamed, part.take(index))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_batches_on_the_gpu_equal_those_of_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """The images are in the GPU's memory, or in the host's and copied one batch ahead."""
    class_folders(folder, {"a": 20, "b": 20})
    data = load_images(str(folder), folder)
    monkeypatch.setattr(prepared_module, "_DEVICE_SHARE", share)
    part = prepare(data, 0, True, torch.device("cuda")).train
    assert part.resident == (share > 0)
    index = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
    windows = index[:14].view(2, 1, 7)
    from_file = prepare(data, 0, True, torch.device("cuda"), from_file=True).train
    expected = prepared(data).train.take(index)
    for streamed in (list(part.stream(index.split(7))), list(from_file.stream_windows(windows))):
        assert all(batch.is_cuda for batch in streamed)
        found = torch.cat(streamed).cpu()
        assert torch.equal(found, expected[: len(found)])


def test_splits_of_a_dataset_share_the_images_on_the_device(folder: Path) -> None:
    class_folders(folder, {"a": 20, "b": 20})
    prepared_module._on_device.cache_clear()
    splits = [
        prepare(load_images(str(folder), folder), seed, holdout, CPU)
        for seed, holdout in ((0, True), (1, True), (0, False))
    ]
    assert prepared_module._on_device.misses == 1
    assert len({one.train.images.data_ptr() for one in splits}) == 1
    Image.new("RGB", (8, 8), "red").save(folder / "b" / "1.png")
    prepare(load_images(str(folder), folder), 0, True, CPU)
    assert prepared_module._on_device.misses == 2, "changed content is a different dataset"


def test_generated_images_are_not_written_to_the_cache() -> None:
    split = prepare(load_images("synthetic-images", Path()), 0, True, CPU)
    assert split is prepare(load_images("synthetic-images", Path()), 0, True, CPU)
    assert split.train.images.dtype == torch.uint8
    assert (len(split.classes), split.size) == (8, 32)
    assert not (cache_dir() / "images").exists()


def test_dataset_of_interactions_is_refused() -> None:
    with pytest.raises(DataError, match="'synthetic' has another kind: got interactions; expected images"):
        load_images("synthetic", Path())


@pytest.mark.slow
@pytest.mark.data("cifar-10-subset")
def test_cifar_10_subset_has_the_expected_counts_and_channel_means() -> None:
    from workloads.data import default_data_root

    data = load_images("cifar-10-subset", default_data_root())
    assert data.train.images.shape == (10_000, 3, 32, 32)
    assert data.classes[:3] == ("airplane", "automobile", "bird")
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    assert channel_means(data.train.images) == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.01)  # of all of CIFAR-10


def channel_means(images: NDArray[np.uint8]) -> Iterable[float]:
    means: list[float] = (images.mean((0, 2, 3)) / 255).tolist()
    return means


def same(first: Images, other: Images) -> bool:
    parts = [(first.train, other.train), (first.test, other.test)]
    arrays = all(
        np.array_equal(getattr(one, name), getattr(two, name))
        for one, two in parts for name in ("images", "labels", "rows")
    )  # fmt: skip
    return arrays and first.classes == other.classes and first.skipped == other.skipped
