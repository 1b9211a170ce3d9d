"""Image sources: class folders, Parquet tables, the archives of the known datasets, and the generator."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.support.pictures import class_folders, picture
from workloads.data import DataError, dataset, fingerprint
from workloads.data.errors import UnclearLayout
from workloads.data.images.archives import CIFAR_10, CIFAR_100, read_cifar, read_stl10, read_tiny_imagenet
from workloads.data.images.kind import is_images
from workloads.data.images.load import load_images
from workloads.data.images.synthetic import CLASSES, Planted, generate
from workloads.data.images.tables import read_image_tables
from workloads.data.images.types import ImageSource, Listing


def png(name: str, place: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(name, place)).save(file, "PNG")
    return file.getvalue()


def table(path: Path, **columns: Any) -> None:
    parquet.write_table(pa.table(columns), path)


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as opened:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))


def read(source: str, folder: Path) -> ImageSource:
    found: ImageSource = dataset(source).reader(folder)
    return found


def arrays(listing: Listing) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(content) for content in listing.contents()])


# Folders


@pytest.mark.parametrize("test", ["test", "val"])
def test_test_part_is_read_from_a_folder_named_test_or_val(tmp_path: Path, test: str) -> None:
    class_folders(tmp_path / "train", {"a": 2, "b": 1})
    class_folders(tmp_path / test, {"b": 2})
    source = read(str(tmp_path), tmp_path)
    assert source.train.labels.tolist() == [0, 0, 1]
    assert source.test.labels.tolist() == [1, 1]
    assert source.test.name(0) == str(tmp_path / test / "b" / "0.png")


@pytest.mark.parametrize("unlabelled", [None, "images"])
def test_val_is_the_test_part_where_test_has_no_labels(tmp_path: Path, unlabelled: str | None) -> None:
    """ImageNet has the images of its test part directly in the folder, Tiny ImageNet in a sub-folder."""
    class_folders(tmp_path / "train", {"a": 2, "b": 1})
    class_folders(tmp_path / "val", {"b": 2})
    (tmp_path / "test").mkdir()
    Image.fromarray(picture("x", 0)).save(tmp_path / "test" / "0.png")
    if unlabelled:
        class_folders(tmp_path / "test", {unlabelled: 2})
    source = read(str(tmp_path), tmp_path)
    assert source.test.labels.tolist() == [1, 1]
    assert source.test.name(0) == str(tmp_path / "val" / "b" / "0.png")


def test_folder_test_is_preferred_to_folder_val_as_test_part(tmp_path: Path) -> None:
    for part in ("train", "test", "val"):
        class_folders(tmp_path / part, {"a": 1})
    assert read(str(tmp_path), tmp_path).test.name(0) == str(tmp_path / "test" / "a" / "0.png")


@pytest.mark.parametrize("test", ["valid", None])
def test_train_without_a_test_part_is_no_class(tmp_path: Path, test: str | None) -> None:
    for part in filter(None, ("train", test)):
        class_folders(tmp_path / part, {"a": 2, "b": 2})
    with pytest.raises(DataError, match=r"train has no test part: got .*train.*; expected train and test or val"):
        load_images(str(tmp_path), tmp_path)
    assert load_images(str(tmp_path / "train"), tmp_path).classes == ("a", "b")


def test_a_class_may_be_named_train(tmp_path: Path) -> None:
    class_folders(tmp_path, {"car": 2, "train/images": 2})
    assert read(str(tmp_path), tmp_path).classes == ("car", "train")


def test_images_in_subfolders_are_read_and_hidden_folders_are_ignored(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", {"images": 2})
    class_folders(tmp_path, {"b": 1, ".hidden": 1})
    source = read(str(tmp_path), tmp_path)
    assert source.classes == ("a", "b")
    assert source.train.labels.tolist() == [0, 0, 1]


def test_hidden_files_and_folders_of_a_class_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    class_folders(folder, {"a": 1, "b": 1})
    first = fingerprint(str(folder), folder)
    class_folders(folder / "a", {".thumbnails": 1, "deeper/.ipynb_checkpoints": 1})
    (folder / "b" / "._0.png").write_bytes(b"Mac OS X")
    source = read(str(folder), folder)
    assert [source.train.name(place) for place in range(len(source.train))] == [
        str(folder / name / "0.png") for name in ("a", "b")
    ]
    assert fingerprint(str(folder), folder) == first
    for name in ("a", "b"):
        (folder / name / "0.png").unlink()
    assert not is_images(folder)


def test_folder_with_few_images_among_others_is_not_an_image_dataset(tmp_path: Path) -> None:
    class_folders(tmp_path / "code" / "docs", {"figures": 1})  # three folders deep
    assert not is_images(tmp_path)
    class_folders(tmp_path / "half", {"a": 1, "b": 0})
    assert is_images(tmp_path / "half")
    class_folders(tmp_path / "half", {"c": 0})
    assert not is_images(tmp_path / "half")
    class_folders(tmp_path / "rated", {"plots": 2})
    for part in ("train", "test"):
        (tmp_path / "rated" / f"{part}.csv").write_text("user,item\n1,1\n1,2\n")
    assert dataset(str(tmp_path / "rated")).kind == "interactions"


def test_error_names_a_class_without_images(tmp_path: Path) -> None:
    class_folders(tmp_path / "pictures", {"a": 2, "empty": 0})
    (tmp_path / "pictures" / "empty" / "readme.txt").touch()
    with pytest.raises(DataError, match=r"empty: the class has no image; expected files that end in \.jpg"):
        load_images(str(tmp_path / "pictures"), tmp_path)


def test_link_to_an_image_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """As of a dataset in git-annex whose files have not been fetched."""
    folder = tmp_path / "pictures"
    class_folders(folder, {"a": 2, "b": 1})
    (folder / "b" / "1.png").symlink_to("../annex/1.png")
    (folder / "b" / "notes.txt").symlink_to("../annex/notes.txt")
    with pytest.raises(DataError, match=r"b/1\.png: the link leads to no file: got \.\./annex/1\.png"):
        load_images(str(folder), tmp_path)


def test_error_without_a_decodable_image_names_the_first(tmp_path: Path) -> None:
    table(tmp_path / "all.parquet", image=[b"x", b"y"], label=[0, 1])
    with pytest.raises(DataError, match=r"no image .* can be decoded: got .*all\.parquet, row 1 \(it is in no format"):
        load_images(str(tmp_path / "all.parquet"), tmp_path, corrupt="skip")


def test_error_names_a_part_without_classes(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2})
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match=r"test: the folder holds no class"):
        load_images(str(tmp_path), tmp_path)


def test_error_names_a_class_that_occurs_only_in_test(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 2})
    class_folders(tmp_path / "test", {"a": 1, "b": 1})
    with pytest.raises(DataError, match=r"test/b: the test part has a class that train does not have"):
        load_images(str(tmp_path), tmp_path)


def test_empty_folder_raises_an_error_with_the_expected_layout(tmp_path: Path) -> None:
    assert not is_images(tmp_path)
    with pytest.raises(DataError, match=r"the folder does not hold the parts.*or images, a sub-folder for each class"):
        load_images(str(tmp_path), tmp_path)


# Parquet


def test_parquet_parts_are_read_with_the_class_names_of_label_name(tmp_path: Path) -> None:
    for part, labels in (("train", [1, 0, 2]), ("test", [0, 2])):
        images = [png(part, place) for place in range(len(labels))]
        names = [("ape", "bee", "cat")[label] for label in labels]
        table(tmp_path / f"{part}.parquet", image=images, label=labels, label_name=names)
    data = load_images(str(tmp_path), tmp_path)
    assert data.classes == ("ape", "bee", "cat")
    assert data.train.labels.tolist() == [1, 0, 2]
    assert data.test.labels.tolist() == [0, 2]
    assert (data.test.images[1] == picture("test", 1).transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("names", "line", "message"),
    [
        (["ape", None, "ape"], 2, r"the class has no name: got None; expected one name for label 1"),
        (["ape", "bee", "cat"], 3, r"the class has two names: got 'cat'; expected one name for label 0"),
    ],
)
def test_a_class_without_one_name_is_refused(names: list[str | None], line: int, message: str, tmp_path: Path) -> None:
    table(tmp_path / "all.parquet", image=[png("x", 0)] * 3, label=[0, 1, 0], label_name=names)
    with pytest.raises(DataError, match=message) as caught:
        load_images(str(tmp_path / "all.parquet"), tmp_path)
    assert caught.value.line == line


def test_tables_next_to_class_folders_are_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        class_folders(tmp_path / part, {"a": 1, "b": 1})
        table(tmp_path / f"{part}.parquet", image=[png("x", 0), png("x", 1)], label=[0, 1])
    with pytest.raises(UnclearLayout, match=r"two layouts: got train.parquet; and folders train and test"):
        load_images(str(tmp_path), tmp_path)


def test_table_with_structs_of_bytes_and_path_and_text_labels_is_read(tmp_path: Path) -> None:
    images = [{"bytes": png("x", place), "path": f"{place}.png"} for place in range(4)]
    table(tmp_path / "all.parquet", image=images, label=["dog", "ant", "dog", "ant"])
    data = load_images(str(tmp_path / "all.parquet"), tmp_path)
    assert data.classes == ("ant", "dog")
    assert data.train.labels.tolist() == [1, 0, 1, 0]
    assert len(data.test.images) == 0
    assert (data.train.images[3] == picture("x", 3).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("labels", [[2, 1, 2, 1], [60_000, 0, 60_000, 0]])
def test_classes_are_the_labels_that_occur(tmp_path: Path, labels: list[int]) -> None:
    table(tmp_path / "all.parquet", image=[png("x", place) for place in range(4)], label=labels)
    source = read(str(tmp_path / "all.parquet"), tmp_path)
    assert source.classes == (str(labels[1]), str(labels[0]))
    assert source.train.labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (["a", "b"], [0, 1], "the column label has another type than in train: got integers; expected names, as"),
        ([0, 1], ["a", "b"], "the column label has another type than in train: got names; expected integers, as"),
        ([0, 2], [2, 1], "line 2: the test part has a class that train does not have: got 1; expected the classes of"),
        (["a", "b"], ["c", "b"], "line 1: the test part has a class that train does not have: got 'c'"),
    ],
)
def test_test_table_with_labels_that_train_lacks_is_refused(
    tmp_path: Path, train: Any, test: Any, message: str
) -> None:
    for part, labels in (("train", train), ("test", test)):
        table(tmp_path / f"{part}.parquet", image=[png(part, place) for place in range(2)], label=labels)
    with pytest.raises(DataError) as caught:
        load_images(str(tmp_path), tmp_path)
    assert message in str(caught.value)


def test_missing_image_in_a_table_is_handled_as_corrupt(tmp_path: Path) -> None:
    table(tmp_path / "all.parquet", image=[png("x", 0), None, png("x", 2)], label=[0, 0, 0])
    with pytest.raises(DataError, match=r"got .*all\.parquet, row 2 \(it is in no format that is known\)"):
        load_images(str(tmp_path / "all.parquet"), tmp_path)
    data = load_images(str(tmp_path / "all.parquet"), tmp_path, corrupt="skip")
    assert data.train.rows.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [b"x"]}, "the table has no column label: got image; expected the columns image and label"),
        (
            {"image": ["cats/1.png"], "label": [0]},
            "column image holds text: got string; expected the bytes of image files",
        ),
        ({"image": [b"x", b"y"], "label": [0, None]}, "line 2: the image has no label: got None"),
        (
            {"image": [b"x"], "label": pa.array([2**62], pa.timestamp("ms"))},
            "all.parquet: column label holds a time out of range",
        ),
        ({"image": [b"x"], "label": [-1]}, "line 1: the image has no label: got -1; expected an integer from 0"),
        ({"image": [b"x"], "label": [2**40]}, "got 1099511627776; expected an integer from 0 to 65535, or a name"),
        (
            {"image": [b"x"], "label": pa.array([b"\xff"]).view(pa.string())},
            "all.parquet: the file is not Parquet, or is",
        ),
        ({"image": [b"x"], "label": [0.5]}, "line 1: the image has no label: got 0.5"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "the table is empty"),
    ],
)
def test_table_without_valid_labels_raises_data_error(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    table(tmp_path / "all.parquet", **columns)
    with pytest.raises(DataError) as caught:
        load_images(str(tmp_path / "all.parquet"), tmp_path)
    assert message in str(caught.value)


def test_tables_of_interactions_are_not_taken_for_images(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for part in ("train", "test"):
        table(tmp_path / f"{part}.parquet", user=[1], item=[2])
    assert not is_images(tmp_path)
    table(tmp_path / "all.parquet", user=[1], item=[2])
    assert not is_images(tmp_path / "all.parquet")
    assert dataset(str(tmp_path / "all.parquet")).kind == "interactions"
    table(tmp_path / "shop.parquet", user_id=[1], item_id=[2], image=["https://shop/2.jpg"])
    assert dataset(str(tmp_path / "shop.parquet")).kind == "interactions"


# Archives


def cifar(folder: Path, known: Any, meta: str, labels: str, members: Mapping[str, Any]) -> ImageSource:
    """Write an archive with these batches of (pixels (n, 3, 32, 32), labels), and read it."""
    contents = {
        name: pickle.dumps({"data": rows.reshape(len(rows), -1), labels: list(numbers)}, protocol=4)
        for name, (rows, numbers) in members.items()
    }
    (file,) = known.files
    contents[known.reader.keywords["meta"]] = pickle.dumps({meta: ["ape", "bee", "cat"]}, protocol=4)
    archive(folder / file.path, contents)
    found: ImageSource = known.reader(folder)
    return found


def planes(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def test_cifar_10_is_read_from_five_train_batches_and_a_test_batch(tmp_path: Path) -> None:
    batches = {f"cifar-10-batches-py/data_batch_{n}": (planes(2, n), [n % 3, 0]) for n in range(1, 6)}
    test = {"cifar-10-batches-py/test_batch": (planes(3, 9), [0, 1, 2])}
    source = cifar(tmp_path, CIFAR_10, "label_names", "labels", batches | test)
    assert source.classes == ("ape", "bee", "cat")
    assert source.train.labels.tolist() == [1, 0, 2, 0, 0, 0, 1, 0, 2, 0]
    assert (arrays(source.train)[2:4] == planes(2, 2).transpose(0, 2, 3, 1)).all()
    assert (arrays(source.test) == planes(3, 9).transpose(0, 2, 3, 1)).all()


def test_cifar_100_has_its_fine_labels(tmp_path: Path) -> None:
    members = {"cifar-100-python/train": (planes(2, 0), [2, 1]), "cifar-100-python/test": (planes(1, 1), [0])}
    source = cifar(tmp_path, CIFAR_100, "fine_label_names", "fine_labels", members)
    assert source.train.labels.tolist() == [2, 1]
    assert source.test.labels.tolist() == [0]


def test_pickle_with_a_foreign_callable_is_refused_without_calling_it(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    archive(tmp_path / "c.tar.gz", {"train": pickle.dumps(Evil())})
    with pytest.raises(DataError, match=r"c\.tar\.gz: the archive is damaged or another one \(it names pathlib"):
        read_cifar(tmp_path, "c.tar.gz", ("train",), "test", "meta", "label")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_error_names_a_damaged_archive(tmp_path: Path, damage: str) -> None:
    file = tmp_path / CIFAR_10.files[0].path
    archive(file, {"cifar-10-batches-py/data_batch_1": bytes(planes(20, 0))})
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"<html>"}[damage])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: the archive is damaged or another one"):
        CIFAR_10.reader(tmp_path)


def test_error_names_a_missing_member_of_an_archive(tmp_path: Path) -> None:
    archive(tmp_path / CIFAR_10.files[0].path, {"other": b""})
    with pytest.raises(DataError, match=r"the archive is damaged or another one \('cifar-10-batches-py/batches\.meta'"):
        CIFAR_10.reader(tmp_path)


def test_stl_10_train_part_includes_the_unlabelled_images(tmp_path: Path) -> None:
    images = {name: np.random.default_rng(place).integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
              for place, (name, count) in enumerate({"train": 2, "unlabeled": 3, "test": 1}.items())}  # fmt: skip
    members = {f"stl10_binary/{name}_X.bin": part.tobytes() for name, part in images.items()}
    members |= {"stl10_binary/train_y.bin": bytes([10, 1]), "stl10_binary/test_y.bin": bytes([3])}
    members["stl10_binary/class_names.txt"] = b"airplane\nbird\ncar\n"
    archive(tmp_path / "stl10_binary.tar.gz", members)
    source = read_stl10(tmp_path)
    assert source.train.labels.tolist() == [9, 0, -1, -1, -1]
    assert source.test.labels.tolist() == [2]
    expected = np.concatenate([images["train"], images["unlabeled"]]).transpose(0, 3, 2, 1)  # stored by columns
    assert (arrays(source.train) == expected).all()
    assert source.classes == ("airplane", "bird", "car")


def test_tiny_imagenet_uses_its_validation_part_as_test_part(tmp_path: Path) -> None:
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as opened:
        opened.writestr(f"{root}/wnids.txt", "n02\nn01\n")
        for name in ("n01", "n02"):
            opened.writestr(f"{root}/train/{name}/images/{name}_0.JPEG", png(name, 0))
        opened.writestr(f"{root}/val/images/val_0.JPEG", png("val", 0))
        opened.writestr(f"{root}/val/images/val_1.JPEG", png("val", 1))
        opened.writestr(f"{root}/val/val_annotations.txt", "val_1.JPEG\tn02\t0\t0\nval_0.JPEG\tn01\t0\t0\n")
    source = read_tiny_imagenet(tmp_path)
    assert source.classes == ("n01", "n02")
    assert source.train.labels.tolist() == [0, 1]
    assert source.test.labels.tolist() == [1, 0]
    assert list(source.train.contents()) == [png("n01", 0), png("n02", 0)]
    assert list(source.test.contents()) == [png("val", 1), png("val", 0)]


# The generator


def test_generated_images_match_the_recorded_digest() -> None:
    source = generate(Planted(train=64, test=16))
    digest = hashlib.sha256(arrays(source.train).tobytes() + arrays(source.test).tobytes()).hexdigest()
    assert digest == "542c57e0661441faaa880e60e04a21bc4ef4a9bffa3a8caf67e7fb1aa39394a9"
    assert source.train.labels.tolist() == list(range(8)) * 8
    assert source.classes == CLASSES


def test_generated_classes_differ_in_shape_but_not_in_mean_brightness() -> None:
    """With two levels, without tint and noise, area and stripes depend on the class; mean brightness does not."""
    source = generate(Planted(train=1600, test=8, tint=0, noise=0))
    gray = arrays(source.train)[..., 0]
    labels = source.train.labels
    brightness = np.array([gray[labels == label].mean() for label in range(8)])
    assert brightness.std() < 0.1 * gray.std()
    ground = gray[:, :1, :1]  # a corner is seldom covered
    share = np.array([(gray != ground)[labels == label].mean() for label in range(8)])
    assert (share[::2] > 1.5 * share[1::2]).all(), "a striped shape covers about half of a plain one"


def test_archive_of_another_content_is_refused_as_cifar_10(tmp_path: Path) -> None:
    (tmp_path / "cifar-10").mkdir()
    archive(tmp_path / "cifar-10" / CIFAR_10.files[0].path, {"x": b""})
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: .*orchestrator data fetch cifar-10"):
        load_images("cifar-10", tmp_path)


def test_image_tables_are_read_from_the_given_file_names(tmp_path: Path) -> None:
    table(tmp_path / "one.parquet", image=[png("x", 0)], label=[3])
    source = partial(read_image_tables, files=("one.parquet",))(tmp_path)
    assert source.classes == ("3",)
