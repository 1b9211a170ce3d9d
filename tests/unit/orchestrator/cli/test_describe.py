"""Listings of workloads, parameters and datasets: complete, correct, within 100 columns, no heavy import."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from orchestrator.cli import describe
from orchestrator.cli.services import data_fetch
from orchestrator.config import workload_loader
from orchestrator.config.plan import PLAN_KEYS, Plan
from orchestrator.errors import UserError
from orchestrator.storage.settings import Settings, resolve
from tests.support.pictures import class_folders
from workloads import catalog
from workloads.data import DataError, Dataset, SourceFile, datasets
from workloads.recommender.params import Params

STEPS = {"integer": 1, "number": 1e-9}


class Kind(enum.Enum):
    PLAIN = "plain"
    FANCY = "fancy"


class Odd(BaseModel):
    """Parameters with the kinds of fields that a third-party workload may declare."""

    needed: int = Field(gt=3, description="Has no default. " + "Long. " * 40)
    kind: Kind = Kind.FANCY
    mixed: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    ratio: float = Field(0.5, ge=0, lt=1, description="A share [0, 1) of [bold]all[/bold].")
    sizes: list[int] = [3, 4]


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(catalog.BUILT_IN, "odd", catalog.Entry(f"{__name__}:Odd", "", "Somebody else's."))
    return "odd"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_DATA", str(tmp_path / "data"))
    return resolve()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Path:
    """A dataset of one file of numbers; returns the path of the intact file."""

    def read(folder: Path) -> None:
        for number, line in enumerate((folder / "n.txt").read_text().splitlines(), 1):
            if not line.isdigit():
                raise DataError("not a number", file=folder / "n.txt", line=number, got=repr(line))

    content = b"1\n2\n3\n"
    source = SourceFile("n.txt", len(content), hashlib.sha256(content).hexdigest(), "http://127.0.0.1:9/n.txt")
    monkeypatch.setitem(datasets.DATASETS, "tiny", Dataset("tiny", "Three numbers.", "numbers", read, (source,)))
    path = settings.data / "tiny" / "n.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def rows_of(text: str) -> dict[str, str]:
    """The lines of the text, each under its first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


def test_workload_listing_matches_the_catalog(toy_workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_workloads(as_json=True)
    assert {row["name"]: row["summary"] for row in printed(capsys)} == {
        name: entry.summary for name, entry in catalog.catalog().items()
    }
    describe.print_workloads(as_json=False)
    assert rows_of(capsys.readouterr().out)[toy_workload].split(maxsplit=1)[1] == "One number on a parabola."


def test_every_parameter_and_every_plan_key_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_parameters("recommender", as_json=True)
    rows = printed(capsys)
    assert [row["name"] for row in rows if row["section"] == "params"] == list(Params.model_fields)
    assert [row["name"] for row in rows if row["section"] == "plan"] == list(PLAN_KEYS)
    defaults = {**Plan().model_dump(mode="json"), **Params().model_dump(mode="json")}
    rows = [row for row in rows if row["section"] in ("params", "plan")]
    assert {row["name"]: row["default"] for row in rows} == {row["name"]: defaults[row["name"]] for row in rows}
    assert all(row["description"] for row in rows)

    describe.print_parameters("recommender", as_json=False)
    text = capsys.readouterr().out
    shown = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    assert [name for name in shown if name in defaults] == [row["name"] for row in rows]


def test_shown_bounds_match_the_validation(capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_parameters("recommender", as_json=True)
    tried = 0
    for row in printed(capsys):
        model: type[BaseModel] = Params if row["section"] == "params" else Plan
        for bound, outwards in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0), ("exclusiveMaximum", 0)):
            if bound in row:
                tried += 1
                if outwards:
                    assert _errors(model, row["name"], row[bound]) == []
                assert _errors(model, row["name"], row[bound] + outwards * STEPS[row["type"]]) == [row["name"]]
        for choice in row.get("enum", []):
            assert _errors(model, row["name"], choice) == []
    assert tried > 10


def _errors(model: type[BaseModel], name: str, value: object) -> list[str]:
    """The fields that are invalid if one field has this value, without contradictions between fields."""
    try:
        model(**{name: value})
    except ValidationError as error:
        return [str(problem["loc"][0]) for problem in error.errors() if problem["loc"]]
    return []


def test_types_bounds_and_choices_of_unusual_parameters_are_shown(odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_parameters(odd, as_json=False)
    rows = {name: line.split("  ") for name, line in rows_of(capsys.readouterr().out).items()}
    cells = {name: [cell.strip() for cell in line if cell.strip()] for name, line in rows.items()}
    assert cells["needed"][:4] == ["needed", "int", "required", "> 3"]
    assert cells["kind"] == ["kind", "str", "fancy", "plain, fancy"]
    assert cells["mixed"] == ["mixed", "int or str", "unset", ">= 1, auto, null"]
    assert cells["ratio"] == ["ratio", "float", "0.5", ">= 0, < 1", "A share [0, 1) of [bold]all[/bold]."]
    assert cells["sizes"] == ["sizes", "list", "[3, 4]"]


def test_presets_are_shown_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_parameters("bi_encoder", as_json=True)
    (preset,) = [row for row in printed(capsys) if row["section"] == "preset"]
    note = workload_loader.presets("bi_encoder")["note"]
    assert preset == {"name": "note", "section": "preset", "source": note.source, "settings": note.settings}
    describe.print_parameters("bi_encoder", as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "--preset NAME" in text
    assert "loss=mse lowest_cosine=-1.0" in text
    assert note.source.split()[0] in text
    describe.print_parameters("simclr", as_json=False)
    assert "--preset" not in capsys.readouterr().out, "simclr has no presets"


def test_every_search_space_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    describe.print_parameters("lifelong", as_json=False)
    table = capsys.readouterr().out.partition("--space NAME:\n\n")[2].partition("\n\n")[0]
    assert list(rows_of(table)) == ["SPACE", "space", "ranking", "embedding", "replay"]
    assert "Earlier methods: ER, MIR, GSS, OCS." in table
    describe.print_parameters("lifelong", as_json=True)
    (row,) = [row for row in printed(capsys) if row["name"] == "replay" and row["section"] == "space"]
    assert row["description"] == "Earlier methods: ER, MIR, GSS, OCS."


@pytest.mark.parametrize("name", ["recommender", "odd"])
def test_a_pipe_gets_at_most_100_columns_without_trailing_blanks(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "odd":
        request.getfixturevalue("odd")
    monkeypatch.setenv("COLUMNS", "300")
    describe.print_parameters(name, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert 60 < max(map(len, lines)) <= 100
    assert [line for line in lines if line != line.rstrip()] == []


def test_error_of_an_unknown_workload_suggests_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'recommender'\?"):
        describe.print_parameters("recomender", as_json=False)


def test_showing_parameters_imports_nothing_heavy() -> None:
    code = """if True:
        import sys
        from orchestrator.cli import describe
        describe.print_workloads(False)
        describe.print_parameters("recommender", False)
        heavy = {"torch", "numpy", "pandas", "pyarrow", "ray", "mlflow", "optuna"} & set(sys.modules)
        sys.exit(f"imported {heavy}" if heavy else 0)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_dataset_state_is_present_damaged_or_missing(
    tiny: Path, settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def states() -> dict[str, str]:
        describe.print_datasets(settings, as_json=True)
        return {row["name"]: row["state"] for row in printed(capsys)}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())
    generated = [name for name, known in datasets.DATASETS.items() if not known.files]
    present = dict.fromkeys([*generated, "tiny"], "present")
    assert states() == dict.fromkeys(datasets.DATASETS, "missing") | present
    tiny.write_bytes(b"1\n2\n4\n")
    assert states()["tiny"] == "damaged"
    tiny.unlink()
    assert states()["tiny"] == "missing"

    describe.print_datasets(settings, as_json=False)
    text = capsys.readouterr().out
    assert "tiny is missing: orchestrator data fetch tiny" in text
    assert rows_of(text)["synthetic"].split()[1:4] == ["interactions", "present", "generated"]
    assert rows_of(text)["glue-stsb"].split()[2:5] == ["present", "fetched", "by"]

    monkeypatch.setitem(sys.modules, "datasets", None)  # as if the package were not installed
    assert states()["glue-stsb"] == "missing"
    describe.print_datasets(settings, as_json=False)
    assert "glue-stsb is missing: pip install datasets" in capsys.readouterr().out


def test_fetch_of_a_generated_dataset_reports_that_it_has_no_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_fetch("synthetic")
    assert capsys.readouterr().out == "synthetic has no files to fetch: it is generated\n"
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="the package datasets, which is missing"):
        data_fetch("glue-stsb")


def test_verify_reads_present_datasets_and_names_file_and_line(
    tiny: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe.verify_datasets(settings, []) == 0
    assert capsys.readouterr().out == f"tiny: intact, below {settings.data}\n"
    tiny.write_bytes(b"1\ntwo\n3\n")
    assert describe.verify_datasets(settings, []) == 2
    assert f"tiny: {tiny}, line 2: not a number: got 'two'" in capsys.readouterr().out
    assert describe.verify_datasets(settings, ["synthetic"]) == 0
    intact, repeated = capsys.readouterr().out.splitlines()
    assert intact == "synthetic: generated"
    assert re.fullmatch(r"synthetic: 0 of [\d,]+ test interactions are also in the training part", repeated)


def test_verify_names_what_only_decoding_shows(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    class_folders(photos / "train", {"a": 3, "b": 3})
    class_folders(photos / "test", {"a": 1})
    assert describe.verify_datasets(settings, [str(photos)]) == 0
    assert "intact" in capsys.readouterr().out
    (photos / "test" / "a" / "0.png").write_bytes(b"cut")
    assert describe.verify_datasets(settings, [str(photos)]) == 2
    said = capsys.readouterr().out
    assert f"{photos}: an image cannot be decoded: got {photos / 'test' / 'a' / '0.png'}" in said
    assert "intact" not in said
    class_folders(photos / "test", {"c": 1})
    assert describe.verify_datasets(settings, [str(photos)]) == 2
    assert "the test part has a class that train does not have" in capsys.readouterr().out


def test_verify_reports_missing_and_refuses_unknown_datasets(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe.verify_datasets(settings, []) == 0
    assert capsys.readouterr().out == f"No dataset is present below {settings.data}\n"
    assert describe.verify_datasets(settings, ["ml-100k"]) == 2
    assert capsys.readouterr().out.count("is missing") == len(datasets.DATASETS["ml-100k"].files)
    with pytest.raises(UserError, match="Did you mean 'ml-100k'"):
        describe.verify_datasets(settings, ["ml100k"])


@pytest.mark.data
def test_the_real_dataset_is_intact(capsys: pytest.CaptureFixture[str]) -> None:
    settings = resolve()
    if not (settings.data / "ml-100k").is_dir():
        pytest.skip(f"no ml-100k below {settings.data}")
    assert describe.verify_datasets(settings, ["ml-100k"]) == 0
    assert "ml-100k: intact" in capsys.readouterr().out
