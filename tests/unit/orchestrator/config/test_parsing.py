"""From YAML and ``key=value`` to checked values; an error names the setting, the file and the line."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from orchestrator.config.parsing import (
    as_json,
    read_experiment,
    read_overrides,
    read_yaml,
    split_keys,
    validate,
    validate_part,
)
from orchestrator.config.plan import Plan
from tests.support.refusals import refused


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(0.1, gt=0, le=1)
    layers: int = Field(2, ge=1)
    kind: Literal["mf", "lightgcn", "none"] = "mf"
    flag: bool = False
    sizes: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _agree(self) -> Model:
        if self.kind == "mf" and self.layers > 8:
            raise ValueError(f"layers={self.layers} has no effect with kind=mf")
        return self


def file(folder: Path, text: str, name: str = "exp.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# YAML


def test_yaml_values_are_read_with_their_lines(tmp_path: Path) -> None:
    found = read_yaml(file(tmp_path, "# a comment\nseed: 3\nparams:\n  lr: 0.1\n\n  deep: {a: 1}\nplan: {epochs: 5}\n"))
    assert found.values == {"seed": 3, "params": {"lr": 0.1, "deep": {"a": 1}}, "plan": {"epochs": 5}}
    lines = {"seed": 2, "params": 3, "params.lr": 4, "params.deep": 6, "params.deep.a": 6, "plan": 7, "plan.epochs": 7}
    assert found.lines == lines
    assert found.places == {key: f"exp.yaml, line {line}" for key, line in lines.items()}


def test_words_that_yaml_1_1_has_for_booleans_are_text(tmp_path: Path) -> None:
    found = read_yaml(file(tmp_path, "a: off\nb: [yes, true, True, false]\nc: {d: on, e: 1:4, 2:30: x}\n"))
    assert found.values == {"a": "off", "b": ["yes", True, True, False], "c": {"d": "on", "e": "1:4", "2:30": "x"}}


def test_boolean_is_refused_for_an_integer_setting() -> None:
    places = {"epochs": "exp.yaml, line 2", "refit": "exp.yaml, line 3"}
    words = "Plan key epochs (exp.yaml, line 2) is not valid: got True"
    refused(lambda: validate(Plan, {"epochs": True}, "plan key", places), words)
    assert validate(Plan, {"epochs": 3, "refit": True}, "plan key", places).refit is True
    refused(lambda: validate(Plan, {"epochs": True}, "plan key"), "Plan key epochs is not valid: got True; allowed: no")

    class Free(BaseModel):
        value: JsonValue = None

    assert validate(Free, {"value": True}, "parameter").value is True


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(text: str, tmp_path: Path) -> None:
    assert read_yaml(file(tmp_path, text)).values == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: [1, 2\n", ("line 3, column 1 is not valid YAML",)),
        ("a: 1\n  b: 2\n", ("line 2, column 4 is not valid YAML", "mapping values are not allowed")),
        ("a: 1\n\tb: 2\n", ("line 2, column 1 is not valid YAML",)),
        (
            "a: !!python/object:os.system {}\n",
            ("line 1, column 4 is not valid YAML", "could not determine a constructor"),
        ),
        ("a: 1\nb: 2\na: 3\n", ("line 3: a is given twice",)),
        ("p:\n  a: 1\n  a: 3\n", ("line 3: p.a is given twice",)),
        ("- 1\n- 2\n", ("must hold a mapping: got list",)),
        ("just words\n", ("must hold a mapping: got str",)),
        ("1: 2\n", ("line 1", "1", "a name")),
        ("seed: 1\nparams:\n  on: 1\n", ("line 3", "on", "a name")),
        ("params: &a {x: *a}\n", ("nested too deeply, or a part holds itself",)),
    ],
)
def test_invalid_yaml_file_is_refused_with_its_path(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = file(tmp_path, text)
    refused(lambda: read_yaml(path), str(path), *words)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    refused(lambda: read_yaml(tmp_path / "none.yaml"), f"{tmp_path}/none.yaml does not exist")
    refused(lambda: read_yaml(tmp_path), f"The file {tmp_path} cannot be read")


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_bytes(b"\xff\xfe\x00a")
    refused(lambda: read_yaml(tmp_path / "exp.yaml"), "cannot be read")


# Experiments


def test_error_of_an_unknown_section_names_line_and_nearest_name(tmp_path: Path) -> None:
    path = file(tmp_path, "seed: 1\nparms:\n  lr: 1\n")
    refused(lambda: read_experiment(path), f"Unknown key in {path}, line 2: got 'parms'", "Did you mean 'params'?")


@pytest.mark.parametrize("section", ["params", "plan", "resources", "search"])
def test_section_that_is_not_a_mapping_is_refused(section: str, tmp_path: Path) -> None:
    path = file(tmp_path, f"seed: 1\n{section}: [1]\n")
    refused(lambda: read_experiment(path), f"{path}, line 2: {section} must be a mapping: got [1]")


def test_extends_merges_the_values_and_places_of_base_files(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    file(tmp_path / "bases", "workload: toy\nseed: 1\nparams: {lr: 0.1, dim: 4}\n", "root.yaml")
    file(tmp_path / "bases", "extends: root.yaml\nparams: {dim: 8}\nplan: {epochs: 3}\n", "base.yaml")
    found = read_experiment(file(tmp_path, "extends: bases/base.yaml\nseed: 2\nparams: {layers: 2}\n"))
    assert found.values == {
        "workload": "toy", "seed": 2, "params": {"lr": 0.1, "dim": 8, "layers": 2}, "plan": {"epochs": 3},
    }  # fmt: skip
    assert {key: found.places[key] for key in ("params.lr", "params.dim", "params.layers", "plan.epochs")} == {
        "params.lr": "root.yaml, line 3", "params.dim": "base.yaml, line 2", "params.layers": "exp.yaml, line 3",
        "plan.epochs": "base.yaml, line 3",
    }  # fmt: skip


def test_missing_base_file_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "seed: 1\nextends: none.yaml\n")
    what = f"{path}, line 2: the file that it extends does not exist: got {tmp_path}/none.yaml"
    refused(lambda: read_experiment(path), what)


def test_several_bases_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "extends: [a.yaml, b.yaml]\n")
    refused(lambda: read_experiment(path), f"{path}, line 1: extends names one file: got ['a.yaml', 'b.yaml']")


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "extends: b.yaml\n", "a.yaml")
    file(tmp_path, "extends: a.yaml\n", "b.yaml")
    refused(lambda: read_experiment(path), "extends itself", "a.yaml", "b.yaml")


# Overrides


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["lr=0.01", "plan.epochs=5"], {"lr": "0.01", "plan.epochs": "5"}),
        (["name=a=b", "empty="], {"name": "a=b", "empty": ""}),
        (["sizes=[1, 2]", 'map={"a": 1}'], {"sizes": [1, 2], "map": {"a": 1}}),
        (["steps=null"], {"steps": None}),
        (["scheduler=none", "pooling=None"], {"scheduler": "none", "pooling": "None"}),
    ],
)
def test_overrides_are_read_from_words(words: list[str], expected: dict[str, Any]) -> None:
    assert read_overrides(words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["epochs"],
            "Not a setting: got 'epochs'; allowed: key=value. "
            "The workload comes first, options start with --, and = has no spaces around it.",
        ),
        (["=5"], "Not a setting: got '=5'; allowed: key=value"),
        (["lr=1", "lr=2"], "lr is given twice: got 1 and 2. Keep one."),
        (["sizes=[1,"], "The value of sizes is not a JSON list or object: got '[1,'"),
    ],
)
def test_malformed_overrides_are_refused(words: list[str], message: str) -> None:
    refused(lambda: read_overrides(words), message)


def test_keys_are_split_into_params_and_plan() -> None:
    values = {"lr": "1", "params.dim": "2", "epochs": "3", "plan.patience": "4"}
    assert split_keys(values, ["lr", "dim"]) == ({"lr": "1", "dim": "2"}, {"epochs": "3", "patience": "4"})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("epoch", ("Unknown parameter: got 'epoch'", "Did you mean 'epochs'?")),
        ("dims", ("Unknown parameter: got 'dims'", "Did you mean 'dim'?")),
        ("plan.lr", ("lr is a key of params, not of plan: got plan.lr. Write lr=VALUE.",)),
        ("plan.lrr", ("Unknown parameter: got 'plan.lrr'",)),
        (
            "plans.epochs",
            ("Unknown section: got 'plans'; allowed: params, plan, resources, search", "Did you mean 'plan'?"),
        ),
        ("decide_at", ("Unknown parameter: got 'decide_at'",)),
        (
            "dim.in",
            ("The parameter dim is set as a whole: got dim.in. ", "dim='{\"in\": VALUE, ...}'"),
        ),
        ("params.dim.in", ("The parameter dim is set as a whole: got params.dim.in.",)),
    ],
)
def test_unknown_and_misplaced_keys_are_refused(key: str, words: tuple[str, ...]) -> None:
    refused(lambda: split_keys({key: "1"}, ["lr", "dim"]), *words)


def test_a_key_may_not_be_given_in_two_spellings() -> None:
    refused(lambda: split_keys({"lr": "1", "params.lr": "2"}, ["lr"]), "lr is given twice: got 1 and 2")


# Validation


def test_text_becomes_the_fields_own_type() -> None:
    found = validate(Model, {"rate": "0.5", "layers": "3", "flag": "true", "sizes": ["1", 2]}, "parameter")
    assert found == Model(rate=0.5, layers=3, flag=True, sizes=(1, 2))


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Choices(BaseModel):
    degree: Literal[1, 2, "auto"] = 1
    skip: Literal[1, 2] | None = None
    size: Size = Size.SMALL


def test_text_is_converted_to_numeric_literals_and_enum_values() -> None:
    words = {"degree": "2", "skip": "1", "size": "2"}
    assert validate(Choices, words, "parameter") == Choices(degree=2, skip=1, size=Size.LARGE)
    assert validate_part(Choices, words, "parameter") == {"degree": 2, "skip": 1, "size": 2}
    assert validate(Choices, {"degree": "auto"}, "parameter").degree == "auto"
    refused(lambda: validate(Choices, {"degree": "3"}, "parameter"), "got '3'; allowed: 1, 2 or 'auto'")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": "2"}, "Parameter rate is not valid: got '2'; allowed: less than or equal to 1."),
        ({"rate": "fast"}, "Parameter rate is not valid: got 'fast'; allowed: a valid number"),
        ({"layers": 1.5}, "Parameter layers is not valid: got 1.5; allowed: a valid integer"),
        ({"layers": "0"}, "Parameter layers is not valid: got '0'; allowed: greater than or equal to 1."),
        ({"rate": ""}, "Parameter rate is not valid: got ''"),
        ({"rate": None}, "Parameter rate is not valid: got None; allowed: a valid number."),
        (
            {"kind": "lightgnc"},
            "Parameter kind is not valid: got 'lightgnc'; allowed: 'mf', 'lightgcn' or 'none'. "
            "Did you mean 'lightgcn'?",
        ),
        ({"lay": 1}, "Unknown parameter: got 'lay'; allowed: flag, kind, layers, rate, sizes. Did you mean 'layers'?"),
        ({"layers": 9}, "layers=9 has no effect with kind=mf."),
        ({"sizes": "1,2"}, "Parameter sizes is not valid: got '1,2'; allowed: a list, such as [1, 2]."),
        ({"sizes": [1, "x"]}, "Parameter sizes is not valid: got 'x'"),
    ],
)
def test_first_invalid_value_is_reported(values: dict[str, Any], message: str) -> None:
    assert str(refused(lambda: validate(Model, values, "parameter"))).startswith(message)


@pytest.mark.parametrize("name", ["table", "part"])
def test_error_of_text_for_an_object_shows_an_example(name: str) -> None:
    class Nested(BaseModel):
        table: dict[str, int] = {}
        part: Model = Model()

    allowed = "is not valid: got 'a'; allowed: an object, such as {\"name\": 1}."
    refused(lambda: validate(Nested, {name: "a"}, "parameter"), f"Parameter {name} {allowed}")


@pytest.mark.parametrize("values", [{"rate": 9}, {"laters": 1}])
def test_a_problem_from_a_file_has_its_line(values: dict[str, Any]) -> None:
    refused(
        lambda: validate(Model, values, "parameter", dict.fromkeys(values, "exp.yaml, line 12")), "(exp.yaml, line 12)"
    )


def test_validate_part_checks_only_the_given_fields() -> None:
    assert validate_part(Model, {"layers": "9", "kind": "mf"}, "parameter") == {"layers": 9, "kind": "mf"}
    assert validate_part(Model, {}, "parameter") == {}
    refused(
        lambda: validate_part(Model, {"rate": 2}, "parameter", {"rate": "exp.yaml, line 4"}),
        "Parameter rate (exp.yaml, line 4) is not valid",
    )
    refused(lambda: validate_part(Model, {"lay": 2}, "parameter"), "Unknown parameter: got 'lay'", "'layers'")


class Careless(BaseModel):
    rate: float = 0.1
    call: Callable[[float], float] | None = None

    @field_validator("rate")
    @classmethod
    def _known(cls, value: float) -> float:
        if value > 1:
            raise TypeError("no such rate")
        return value


def test_validator_errors_and_values_without_json_form_are_refused() -> None:
    message = "Careless has failed: TypeError: no such rate. It refuses a value by a ValueError"
    refused(lambda: validate(Careless, {"rate": 2}, "parameter"), message)
    assert as_json(Careless()) == {"rate": 0.1, "call": None}
    refused(lambda: as_json(Careless(call=abs)), "The parameters cannot be recorded", "can be named by a Literal")


def test_refit_accepts_true_false_only_and_null() -> None:
    for text, expected in (("true", True), ("false", False), ("only", "only"), (None, None)):
        assert validate(Plan, {"refit": text}, "plan setting").refit == expected
    refused(lambda: validate(Plan, {"refit": "never"}, "plan setting"), "Plan setting refit", "got 'never'", "only")
