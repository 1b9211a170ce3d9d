"""The schema of the configuration file accepts what the commands accept, and refuses what they refuse."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.config import schema, workload_loader
from orchestrator.config.parsing import read_experiment, validate, validate_part
from orchestrator.config.plan import PLAN_KEYS
from orchestrator.config.spec import Search
from orchestrator.errors import UserError
from orchestrator.runs import start_point
from orchestrator.storage.settings import resolve
from orchestrator.sweeps.request import _Request
from tests.support.commands import typed
from workloads.catalog import BUILT_IN

ROOT = Path(__file__).parents[4]

FILES: dict[str, bool] = {
    "{}": True,
    "workload: recommender\nseed: 3\nparams: {lr: 0.01, loss: bcl, batch_size: 512}": True,
    "plan: {epochs: 9, refit: only, objective: 'ndcg_at_20,loss:min', accumulate: auto, init: rec@champion}": True,
    "plan: {objective: [ndcg_at_20], steps_per_epoch: null}": True,
    "resources: {workers: '1:4', gpus_per_worker: 1}": True,
    "search: {space: mf, trials: 8, sampler: tpe, pack: 4, warm_start: [published], constraint: ['loss<=5']}": True,
    "search: {sampler: 'mine.py:Mine', scheduler: 'package.module:Pruner', pack: auto}": True,
    "workloads: recommender": False,
    "workload: simclr": False,
    "seed: -1": False,
    "seed: '1'": False,
    "params: {learning_rate: 0.1}": False,
    "params: {lr: 0}": False,
    "params: {loss: bcel}": False,
    "plan: {epochs: 0}": False,
    "plan: {decide_at: [1]}": False,
    "plan: {refit: sometimes}": False,
    "plan: [epochs]": False,
    "resources: {workers: '4'}": False,
    "search: {trials: 0}": False,
    "search: {sampler: tpee}": False,
    "search: {pack: some}": False,
}


@pytest.fixture(scope="module")
def recommender() -> Any:
    return jsonschema.Draft202012Validator(schema.json_schema("recommender"))


def accepted(file: Path) -> bool:
    """Whether the commands accept a file of the recommender; conditions between settings are not checked."""
    if read_experiment(file).values.get("workload", "recommender") != "recommender":
        return False
    asked = _Request("run", "recommender", resolve(), {"config": file})
    validate_part(workload_loader.params("recommender"), asked.params, "parameter")
    asked.plan()
    asked.resources(whole_machine=True)
    validate(Search, asked.section("search"), "setting")
    return True


@pytest.mark.parametrize(("text", "valid"), FILES.items())
def test_schema_accepts_the_same_files_as_the_commands(
    text: str, valid: bool, recommender: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_point, "resolve", lambda _settings, _workload, init: init)  # no registry is asked
    (tmp_path / "run.yaml").write_text(text)
    assert recommender.is_valid(yaml.safe_load(text)) == valid, list(recommender.iter_errors(yaml.safe_load(text)))
    number_as_text = text == "resources: {workers: '4'}"  # here the command is more lenient than an editor
    if valid or number_as_text:
        assert accepted(tmp_path / "run.yaml")
        return
    with suppress(UserError):
        assert not accepted(tmp_path / "run.yaml")


@pytest.mark.parametrize("workload", BUILT_IN)
def test_every_workload_has_a_schema_with_all_its_settings(workload: str) -> None:
    document = json.loads(json.dumps(schema.json_schema(workload)))
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["properties"]["params"]["properties"].keys() == workload_loader.params(workload).model_fields.keys()
    assert set(document["properties"]["plan"]["properties"]) == set(PLAN_KEYS)
    for preset in workload_loader.presets(workload).values():
        params = {name: value for name, value in preset.settings.items() if name not in PLAN_KEYS}
        plan = {name: value for name, value in preset.settings.items() if name in PLAN_KEYS}
        jsonschema.validate(json.loads(json.dumps({"params": params, "plan": plan})), document)


def test_yaml_examples_of_the_docs_name_their_schema_and_are_valid() -> None:
    """Each example has the line by which an editor finds the schema."""
    seen = 0
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            values = yaml.safe_load(block)
            if "workload" in values:
                seen += 1
                assert block.startswith(f"# yaml-language-server: $schema={values['workload']}.schema.json\n"), page
                jsonschema.validate(values, schema.json_schema(values["workload"]))
    assert seen


def test_schema_command_writes_the_schema(home: Path, tmp_path: Path) -> None:
    written = typed(home, "schema", "simclr", "--output", str(tmp_path / "simclr.schema.json"))
    assert written.returncode == 0
    assert json.loads((tmp_path / "simclr.schema.json").read_text()) == schema.json_schema("simclr")
    assert json.loads(typed(home, "schema", "simclr").stdout) == schema.json_schema("simclr")
    wrong = typed(home, "schema", "simclrr")
    assert wrong.returncode == 2
    assert "Did you mean 'simclr'?" in wrong.stderr
