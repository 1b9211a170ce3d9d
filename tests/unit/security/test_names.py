"""Names of runs, models, experiments, datasets and objects cannot refer to places outside their folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.registry.models import check_alias, check_name
from orchestrator.runs import driver
from orchestrator.storage import records, run_lookup, sync_state
from orchestrator.tracking.names import fitting
from workloads.data import datasets
from workloads.data.errors import DataError

ESCAPES = (
    "..", "../x", "a/../../x", "/etc/passwd", "//etc/passwd", "a//b", "a/", "~", "~root/x", "..\\x", "C:\\x", "\\\\h",
    "a\0b", "~\0", "a\nb", "\u2025/x", "\uff0e\uff0e/x", "..\u2215x", "%2e%2e/x", ".", "", " ", "a b", "...", "a/..",
)  # fmt: skip
"""Parents, absolute paths, Windows separators, NUL, and characters that look like dots and slashes."""

letters = st.sampled_from("./\\~ab:\0%\uff0e\u2215 @'")
names = st.one_of(st.sampled_from(ESCAPES), st.text(alphabet=letters, max_size=12))
few = hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@few
@given(names)
@example("..")
def test_run_name_creates_only_its_folder_or_is_refused(name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        storage = Path(scratch) / "storage"
        storage.mkdir()
        if records.NAME.fullmatch(name):
            records.create(storage, "run", "toy", {}, "orchestrator run toy", name).release("finished", 0)
            assert [path.name for path in storage.iterdir()] == [name]
        else:
            with pytest.raises(UserError, match="is not valid"):
                records.create(storage, "run", "toy", {}, "orchestrator run toy", name)
            assert list(storage.iterdir()) == []
        assert [path.name for path in Path(scratch).iterdir()] == ["storage"]


@few
@given(names)
def test_run_reference_finds_no_folder_outside_the_storage(name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        storage = Path(scratch) / "storage"
        for place in (Path(scratch), storage / "a"):  # the parent looks like a run
            place.mkdir(exist_ok=True, parents=True)
            (place / "record.json").write_text('{"format": 1, "kind": "run", "started": "2026-11-21T00:00:00+00:00"}')
        try:
            found = run_lookup.find(storage, name)
        except UserError:
            return
        assert found.path == storage / "a"


@few
@given(names)
def test_experiment_name_stays_below_the_artifact_folder(name: str) -> None:
    artifacts = Path("/artifacts")
    place = Path(f"{artifacts / fitting(name)}")
    assert ".." not in place.parts
    assert place.is_relative_to(artifacts)
    assert place != artifacts
    assert not set("\0\n\\") & set(str(place))


@few
@given(names)
@example(". .")
def test_accepted_model_name_has_no_separators_or_quotes(name: str) -> None:
    try:
        driver.Options(register=name)
    except UserError:
        return
    assert not set(name) & set("/\\:@'\"\0\n")
    assert name.strip(". ")


@pytest.mark.parametrize("name", ["rec-ml-100k", "My model, v2", "über", "a.b_c-d"])
def test_ordinary_model_names_are_accepted(name: str) -> None:
    check_name(name)


@few
@given(names)
def test_accepted_alias_has_no_special_characters(name: str) -> None:
    try:
        check_alias(name)
    except UserError:
        return
    assert not set(name) & set("./\\~\0% @':")


@few
@given(names)
def test_dataset_name_is_in_the_catalog_or_an_absolute_path(name: str) -> None:
    assume("\0" in name or not os.path.isdir(name))  # an existing folder is a valid dataset name
    try:
        known = datasets.dataset(name)
    except DataError:
        return
    assert name in datasets.DATASETS or Path(known.folder or "").is_absolute()


@few
@given(names)
def test_stored_object_name_stays_in_the_folder_of_the_run(name: str) -> None:
    if sync_state._travels(name):
        place = Path("/runs/run") / name
        assert place.is_relative_to("/runs/run")
        assert not {"..", ""} & set(name.split("/"))


def test_symbolic_links_are_not_stored(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    run = tmp_path / "run"
    (run / "tables").mkdir(parents=True)
    (run / "tables" / "own.parquet").write_text("own")
    (run / "tables" / "linked.parquet").symlink_to(tmp_path / "secret")
    (run / "model").symlink_to(tmp_path)
    assert list(sync_state.scan(run)) == ["tables/own.parquet"]
