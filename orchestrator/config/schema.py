"""JSON Schema of the configuration file of a run or sweep, for editors and checks."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.config import workload_loader
from orchestrator.config.parsing import SECTIONS
from orchestrator.config.plan import PLAN_KEYS, Plan
from orchestrator.config.spec import Resources, Search

DIALECT = "https://json-schema.org/draft/2020-12/schema"

NAME = "^[^\\s].*:[A-Za-z_][A-Za-z0-9_]*$"
"""Pattern of code of a user, ``file.py:name`` or ``module:name``."""

# What the file's text may be in addition to the model's types.
ELASTIC = {"type": "string", "pattern": "^[1-9][0-9]*:[1-9][0-9]*$", "description": "MIN:MAX"}
NAMES = {"type": "string", "description": "METRIC, METRIC:min or METRIC:max; several with commas."}


def json_schema(workload: str) -> dict[str, Any]:
    """The schema of a configuration file of ``workload``. Raises UserError for an unknown one.

    It has names, types, bounds and choices. Conditions between settings, and whether data is there, are checked when
    the command starts.
    """
    models: dict[str, type[BaseModel]] = {
        "params": workload_loader.params(workload), "plan": Plan, "resources": Resources, "search": Search,
    }  # fmt: skip
    references, definitions = models_json_schema([(model, "validation") for model in models.values()])
    shared = definitions.get("$defs", {})
    sections = {}
    for section, model in models.items():
        name = references[(model, "validation")]["$ref"].rpartition("/")[2]
        sections[section] = shared.pop(name)
        sections[section] |= {"additionalProperties": False, "title": section}
        sections[section].pop("required", None)  # words of the command line may give the rest
    plan, resources, search = (sections[name]["properties"] for name in ("plan", "resources", "search"))
    plan["objective"] = _or(plan["objective"], NAMES)
    sections["plan"]["properties"] = {name: plan[name] for name in PLAN_KEYS}
    resources["workers"] = _or(resources["workers"], ELASTIC)
    for setting in ("sampler", "scheduler"):
        search[setting] = _named(search[setting])
    properties = {
        "extends": {"type": "string", "description": "Another file, whose values this one overrides."},
        "workload": {"const": workload},
        "seed": {
            "type": "integer",
            "minimum": 0,
            "exclusiveMaximum": 2**31,
            "description": "Seed of everything random.",
        },
        **sections,
    }
    assert properties.keys() == set(SECTIONS)
    return {
        "$schema": DIALECT, "title": f"Configuration of {workload}", "type": "object", "properties": properties,
        "additionalProperties": False, **({"$defs": shared} if shared else {}),
    }  # fmt: skip


def _or(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The schema of a setting that has another form too. Its default and description stay."""
    about = {name: value for name, value in schema.items() if name in ("default", "description", "title")}
    form = {name: value for name, value in schema.items() if name not in about}
    return {"anyOf": [form, other], **about}


def _named(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a choice or a name of the user's code."""
    forms = [{**form, "pattern": NAME} if form.get("type") == "string" and "enum" not in form else form
             for form in schema["anyOf"]]  # fmt: skip
    return {**schema, "anyOf": forms}
