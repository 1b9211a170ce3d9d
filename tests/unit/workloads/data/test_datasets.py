"""The catalogue: names, missing and damaged files, fingerprints, and checks without heavy imports."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.pictures import class_folders
from tests.support.tiny_dataset import FILES, lay_out, register
from workloads.data import (
    DATASETS,
    DataError,
    Dataset,
    SourceFile,
    check,
    check_readable,
    dataset,
    digests,
    fetch,
    files,
    fingerprint,
    occupations,
    verify,
)
from workloads.data.datasets import KINDS, check_kind


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset of two small files, in the catalogue for one test."""
    return register(monkeypatch, "http://127.0.0.1:9")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay_out(tmp_path / "data")


def test_terms_of_use_of_the_catalogue_match_the_expected_list() -> None:
    """The list is complete, so that no other remark at the end of a summary is taken for terms."""
    expected = {
        "ml-100k": "GroupLens terms: research use",
        "ml-100k-raw": "research use",
        "ml-1m": "research use",
        "yahoo-r3": "on request",
        "scifact": "claims CC BY 4.0",
        "stsb": "scores CC BY-SA 4.0",
    }
    found = {name: entry.terms for name, entry in DATASETS.items() if entry.terms}
    assert found == expected, "add the terms that a summary ends with, in parentheses, to the list of this test"


def test_catalogue_entries_have_summaries_digests_and_addresses() -> None:
    assert {"synthetic", "ml-100k", "ml-1m", "yahoo-r3", "lastfm", "gowalla", "yelp2018"} <= set(DATASETS)
    for name, known in DATASETS.items():
        assert known.name == name
        assert known.summary
        assert all(source.sha256 or source.size or source in known.files for source in known.extras)
        for source in (*known.files, *known.extras):
            assert {len(digest) for digest in (source.sha256, *source.also)} <= {0, 64}
            assert source.url.startswith("https://") != bool(known.obtain)
            assert (source.member or source.url).endswith(source.path) or known.obtain


@pytest.mark.parametrize(("kind", "mine"), [(kind.name, kind.layout) for kind in KINDS.values()])
def test_unknown_name_or_path_is_refused_with_the_accepted_datasets(kind: str, mine: str, tmp_path: Path) -> None:
    fitting = [known.name for known in DATASETS.values() if known.kind == kind]
    with pytest.raises(DataError) as caught:
        check_kind("no-such-thing", kind)
    assert str(caught.value) == (
        f"Unknown dataset: got 'no-such-thing'; expected one of {', '.join(fitting)} or the path of your own."
    )
    with pytest.raises(DataError) as caught:
        check_kind(str(tmp_path), kind)
    assert str(caught.value) == f"{tmp_path}: the path is not a dataset; expected {mine}."
    assert check_kind(str(tmp_path / "nothing"), kind) == str(tmp_path / "nothing")
    with pytest.raises(DataError, match="there is nothing at this path"):
        check(str(tmp_path / "nothing"), tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "sentence1;sentence2;score\na;b;1\n",
            ("the path is not a dataset: got 'sentence1;sentence2;score'", "by ';'"),
        ),
        ("a,b,score\n1,2,3\n", ("the path is not a dataset: got 'a,b,score'",)),
        ("user,item\n1,2\n", ("holds another kind of data: got interactions; expected sentence_pairs: a table",)),
    ],
)
def test_error_for_a_table_of_another_kind_names_the_needed_columns(
    text: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        check_kind(str(tmp_path / "pairs.csv"), "sentence_pairs")
    for word in (*words, "the columns sentence1, sentence2 and score"):
        assert word in str(caught.value)


def test_table_of_pairs_with_wrong_columns_is_not_taken_for_interactions(tmp_path: Path) -> None:
    """The advice on the validation part of interactions would be wrong."""
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.csv").write_text("a,b,score\n1,2,3\n")
    with pytest.raises(DataError, match="the path is not a dataset") as caught:
        check_kind(str(tmp_path), "sentence_pairs")
    assert "a table with the columns sentence1, sentence2" in str(caught.value)


def test_table_that_cannot_be_decompressed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv.gz").write_bytes(b"user,item\n1,2\n")
    with pytest.raises(DataError, match="the path is not a dataset: got it cannot be decompressed"):
        check_kind(str(tmp_path / "pairs.csv.gz"), "sentence_pairs")


def test_error_for_parquet_of_another_kind_names_the_needed_columns(tmp_path: Path) -> None:
    name = str(tmp_path / "triples.parquet")
    parquet.write_table(pa.table({"question": ["a"], "positive": ["b"]}), name)
    with pytest.raises(DataError, match=r"not a dataset: got question, positive; .*query, positive and neg"):
        check_kind(name, "retrieval")


def test_kinds_with_layouts_are_those_of_the_catalogue() -> None:
    assert set(KINDS) == {known.kind for known in DATASETS.values()}


@pytest.mark.parametrize(
    ("kind", "file", "text"),
    [
        ("interactions", "Upper.CSV", "user,item\n1,2\n"),
        ("interactions", "upper.Tsv", "user\titem\n1\t2\n"),
        ("sentence_pairs", "Upper.TSV", "sentence1\tsentence2\tscore\na\tb\t1\n"),
        ("interactions", "Upper.CSV.GZ", "user,item\n1,2\n"),
    ],
)
def test_csv_and_tsv_extensions_are_accepted_in_any_case(kind: str, file: str, text: str, tmp_path: Path) -> None:
    content = text.encode()
    (tmp_path / file).write_bytes(gzip.compress(content) if file.endswith("GZ") else content)
    name = str(tmp_path / file)
    assert check_kind(name, kind) == name
    assert verify(name, tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("interactions", {"user": [1], "item": [2]}),
        ("sentence_pairs", {"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}),
        ("retrieval", {"query": ["a"], "positive": ["b"], "negative": ["c"]}),
    ],
)
def test_parquet_extension_is_accepted_in_upper_case(
    kind: str, columns: dict[str, list[object]], tmp_path: Path
) -> None:
    name = str(tmp_path / "Upper.PARQUET")
    parquet.write_table(pa.table(columns), name)
    assert check_kind(name, kind) == name
    assert verify(name, tmp_path) == []


def test_a_path_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    """As it refuses one in a folder without rights, to all but root."""
    path = tmp_path / ("a" * 300) / "shop.csv"
    assert check_kind(str(path), "interactions") == str(path)
    for read in (dataset, lambda name: check(name, tmp_path)):
        with pytest.raises(DataError, match=r"shop.csv: the path cannot be read: got File name too long\. Fix"):
            read(str(path))
    with pytest.raises(DataError, match=r"the file of dataset ml-100k cannot be read \(File name too long\)"):
        check("ml-100k", path)


def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "photos", {"a": 2, "b": 2})
    closed = tmp_path / "photos" / "b" / "1.png"

    def opened(path: Path) -> Any:
        if path == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return files.opened(path)

    monkeypatch.setattr(digests, "opened", opened)
    with pytest.raises(DataError, match=rf"^{closed}: the file of dataset .*photos cannot be read \(Permission"):
        check(str(tmp_path / "photos"), tmp_path)


def test_fetch_of_an_unknown_dataset_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch("ml-10k", tmp_path)
    assert "your own" not in str(caught.value)
    assert str(caught.value).endswith("Did you mean 'ml-100k'?")


def test_error_for_an_unknown_name_suggests_the_nearest_name() -> None:
    with pytest.raises(DataError, match=r"got 'ml-10k'; expected one of .*synthetic.*Did you mean 'ml-100k'\?$"):
        dataset("ml-10k")
    with pytest.raises(DataError, match=r"got 'zzz'; expected one of"):
        dataset("zzz")


def test_error_for_a_missing_file_names_its_path_and_the_fetch_command(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check("ml-100k", tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'ml-100k' / '100k_train.csv'}: ")
    assert "orchestrator data fetch ml-100k" in message
    assert "ORCHESTRATOR_DATA" in message
    assert f"searched: {tmp_path}" in message
    assert len(verify("ml-100k", tmp_path)) == 2
    with pytest.raises(DataError, match="missing"):
        fingerprint("ml-100k", tmp_path)


def test_missing_file_is_reported_without_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import workloads.data as data\n"
        "try: data.check('ml-100k', Path(sys.argv[1]))\n"
        "except data.DataError: pass\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'torch', 'urllib.request'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_intact_files_pass(tiny: Dataset, root: Path) -> None:
    check("tiny", root)
    assert verify("tiny", root) == []


def test_generated_data_needs_no_files(tmp_path: Path) -> None:
    check("synthetic", tmp_path)
    assert verify("synthetic", tmp_path) == fetch("synthetic", tmp_path) == []


def test_error_names_the_line_of_a_truncated_file(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_train.csv"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"line 4: the line is truncated: got '1,1'.*data fetch tiny"):
        check("tiny", root)
    (problem,) = verify("tiny", root)
    assert "line 4" in problem


def test_changed_but_readable_file_is_refused_by_checksum(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_test.csv"
    changed = path.read_bytes().replace(b"1,6,4", b"1,6,5")
    path.write_bytes(changed)
    with pytest.raises(DataError) as caught:
        check("tiny", root)
    message = str(caught.value)
    assert f"{path}: the checksum differs" in message
    assert hashlib.sha256(changed).hexdigest() in message
    assert tiny.files[1].sha256 in message


def test_overlap_is_reported_although_the_other_file_is_damaged(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_train.csv"
    path.write_bytes(path.read_bytes() + b"1,6,4\r\n")
    with pytest.raises(DataError, match=r"line 3: a pair of the test part is also in the train part.*line 5 of"):
        check("tiny", root)


def test_compressed_copy_is_checked_like_the_original(tiny: Dataset, root: Path) -> None:
    path = root / "tiny" / "100k_train.csv"
    before = fingerprint("tiny", root)
    path.with_name("100k_train.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    check("tiny", root)
    assert verify("tiny", root) == []
    assert fingerprint("tiny", root) == before
    path.with_name("100k_train.csv.gz").write_bytes(gzip.compress(FILES["100k_train.csv"][:-4]))
    with pytest.raises(DataError, match=r"100k_train.csv.gz, line 4: the line is truncated"):
        check("tiny", root)


def test_substitute_file_is_used_only_if_the_own_files_are_missing(
    tiny: Dataset, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the dataset's own files are missing, the substitute is checked and named in errors."""
    other = SourceFile("other.csv", 3, hashlib.sha256(b"abc").hexdigest())
    known = dataclasses.replace(tiny, instead=(other,), reader=lambda folder: (folder / "other.csv").read_bytes())
    monkeypatch.setitem(DATASETS, "tiny", known)
    (root / "tiny" / "other.csv").write_bytes(b"xyz")
    assert known.files_in(root) == known.files
    before = fingerprint("tiny", root)
    for source in known.files:
        (root / "tiny" / source.path).unlink()
    with pytest.raises(DataError, match=r"other\.csv: the checksum differs"):
        check("tiny", root)
    (root / "tiny" / "other.csv").write_bytes(b"abc")
    assert verify("tiny", root) == []
    assert fingerprint("tiny", root) != before
    (root / "tiny" / "other.csv").unlink()
    assert known.files_in(root) == known.files


def test_file_with_an_alternative_checksum_is_accepted(
    tiny: Dataset, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = FILES["100k_train.csv"].replace(b"\r\n", b"\n")
    (root / "tiny" / "100k_train.csv").write_bytes(content)
    with pytest.raises(DataError, match="checksum differs"):
        check("tiny", root)
    train, test = tiny.files
    train = dataclasses.replace(train, also=(hashlib.sha256(content).hexdigest(),))
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(tiny, files=(train, test)))
    check("tiny", root)


class TestWithoutChecksum:
    @pytest.fixture
    def unverified(self, tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> Dataset:
        files = tuple(SourceFile(source.path) for source in tiny.files)
        known = dataclasses.replace(tiny, files=files, obtain="Ask for it at https://example.org")
        monkeypatch.setitem(DATASETS, "tiny", known)
        return known

    @pytest.mark.usefixtures("unverified")
    def test_damage_without_checksums_is_found_by_check_readable_and_verify(self, root: Path) -> None:
        path = root / "tiny" / "100k_train.csv"
        check("tiny", root)
        check_readable("tiny", root)
        assert verify("tiny", root) == []
        path.write_bytes(path.read_bytes()[:-4])
        check("tiny", root)
        with pytest.raises(DataError, match="line 4: the line is truncated"):
            check_readable("tiny", root)
        assert "line 4" in verify("tiny", root)[0]
        path.write_bytes(b"")
        with pytest.raises(DataError, match="line 1: the columns are wrong"):
            check("tiny", root)

    @pytest.mark.usefixtures("unverified")
    def test_missing_file_without_address_is_reported_with_how_to_obtain_it(self, root: Path) -> None:
        (root / "tiny" / "100k_test.csv").unlink()
        advice = f"Ask for it at https://example.org; put 100k_train.csv and 100k_test.csv into {root / 'tiny'}"
        with pytest.raises(DataError, match=re.escape(advice)):
            check("tiny", root)
        with pytest.raises(DataError, match=f"no public address.*{re.escape(advice)}"):
            fetch("tiny", root)


class TestOccupations:
    def test_dataset_without_occupations_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"has no occupations of its users: got synthetic; expected.*ml-100k"):
            occupations("synthetic", tmp_path)

    def test_missing_rating_and_user_files_raise_data_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"ml-100k/u.data: .*missing.*orchestrator data fetch ml-100k-raw"):
            check("ml-100k-raw", tmp_path)
        with pytest.raises(DataError, match=r"u.user: the file of dataset ml-100k-raw is missing"):
            occupations("ml-100k-raw", tmp_path)


def test_every_damaged_file_is_listed(tiny: Dataset, root: Path) -> None:
    (root / "tiny" / "100k_train.csv").write_bytes(b"user,item\r\n")
    (root / "tiny" / "100k_test.csv").unlink()
    (root / "tiny" / "100k_test.csv").mkdir()
    problems = verify("tiny", root)
    assert len(problems) == 2
    assert "checksum" in problems[0]
    assert "cannot be read (Is a directory)" in problems[1]


def test_the_fingerprint_is_that_of_content_and_version(
    tiny: Dataset, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint("tiny", root)
    moved = shutil.copytree(root, tmp_path / "elsewhere")
    assert fingerprint("tiny", moved) == before
    (moved / "tiny" / "100k_test.csv").write_bytes(FILES["100k_train.csv"])
    assert fingerprint("tiny", moved) != before
    monkeypatch.setitem(DATASETS, "tiny", dataclasses.replace(tiny, version="2"))
    assert fingerprint("tiny", root) != before
