"""Parse YAML files and ``key=value`` words and validate them. Nothing here imports PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, JsonValue, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from orchestrator.config.plan import PLAN_KEYS
from orchestrator.errors import UserError, check_text, nearest, one_line, short_repr, unknown

M = TypeVar("M", bound=BaseModel)

NAMES = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
"""YAML tags that a key may have; ``on``, ``yes`` and ``1`` have others, as they are not text."""

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
BOOLEAN = "tag:yaml.org,2002:bool"

NOT_JSON = "A parameter holds text, numbers, lists or dicts; a function can be named by a Literal"

LIST = "a list, such as [1, 2]"
OBJECT = 'an object, such as {"name": 1}'
WRITTEN = {**dict.fromkeys(("list_type", "tuple_type", "set_type"), LIST), "dict_type": OBJECT, "model_type": OBJECT}
"""How the command line and YAML write the values of a field that pydantic expects, by its type of problem."""

SECTIONS = ("extends", "workload", "seed", "params", "plan", "resources", "search")


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping and the line of each key, by dotted path. ``places`` has the file's name too."""

    values: dict[str, Any]
    lines: Mapping[str, int]
    places: Mapping[str, str]


def read_yaml(file: Path) -> Document:
    """Read a YAML mapping. Raises UserError with file and line."""
    import yaml

    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise UserError(f"The file {file} does not exist", fix="Check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {file} cannot be read: {error}") from None
    try:
        loader = yaml.SafeLoader(text)
        if node := loader.get_single_node():
            _keep_text(node)
        values = loader.construct_document(node) if node else None
        lines: dict[str, int] = {}
        if isinstance(values, dict):
            _lines(node, "", lines, file)
            check_text(f"A text in {file}", values)
    except RecursionError:
        raise UserError(f"{file} is nested too deeply, or a part holds itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{file}{where} is not valid YAML: {problem}") from None
    if values is None:
        return Document({}, {}, {})
    if not isinstance(values, dict):
        raise UserError(f"{file} must hold a mapping", got=type(values).__name__, allowed="key: value lines")
    return Document(values, lines, {key: f"{file.name}, line {line}" for key, line in lines.items()})


def read_experiment(file: Path) -> Document:
    """Read an experiment's YAML: sections ``workload, seed, params, plan, resources, search, extends``.

    ``extends: base.yaml`` is merged below this file's own values. Raises UserError with file and line.
    """
    return _read_experiment(file, ())


def _read_experiment(file: Path, above: tuple[Path, ...]) -> Document:
    above = (*above, file.resolve())
    if above[-1] in above[:-1]:
        raise UserError(f"{file} extends itself", got=" -> ".join(path.name for path in above), fix="Break the circle")
    document = read_yaml(file)
    for key in document.values:
        if key not in SECTIONS:
            raise unknown(f"key in {file}, line {document.lines[key]}", key, SECTIONS)
    for key in ("params", "plan", "resources", "search"):
        section = document.values.get(key, {})
        if not isinstance(section, dict):
            raise UserError(
                f"{file}, line {document.lines[key]}: {key} must be a mapping", got=repr(section), allowed="key: value"
            )
    if base := document.values.pop("extends", None):
        where = f"{file}, line {document.lines['extends']}"
        if not isinstance(base, str):
            raise UserError(f"{where}: extends names one file", got=repr(base), allowed="a path, such as base.yaml")
        if not (file.parent / base).exists():
            raise UserError(
                f"{where}: the file that it extends does not exist", got=file.parent / base, fix="Check the path"
            )
        parent = _read_experiment(file.parent / base, above)
        places = {**parent.places, **document.places}
        return Document(_merge(parent.values, document.values), {**parent.lines, **document.lines}, places)
    return document


def read_overrides(words: Iterable[str]) -> dict[str, Any]:
    """``["lr=0.01", "plan.epochs=5"]`` -> ``{"lr": "0.01", "plan.epochs": "5"}``; JSON and null are parsed."""
    result: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            fix = "The workload comes first, options start with --, and = has no spaces around it"
            raise UserError("Not a setting", got=repr(word), allowed="key=value", fix=fix)
        if key in result:
            raise _twice(key, result[key], value)
        result[key] = _parse(key, value)
        check_text(f"The value of {key}", result[key])  # JSON can escape what is not UTF-8
    return result


def option_values(words: Sequence[str]) -> dict[str, str]:
    """The values of a command line's options by name, given as ``--name value`` or ``--name=value``.

    Without knowing which options take a value: every word has the one that follows it.
    """
    return dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)


def split_keys(
    values: Mapping[str, Any],
    params: Iterable[str],
    mistaken: Callable[[str, Any, Collection[str]], UserError] | None = None,
) -> tuple[dict[str, Any], ...]:
    """Split ``key=value`` settings into (params, plan). A key may have the prefix ``params.`` or ``plan.``.

    ``mistaken`` gives the error for a key that is neither, from key, value and the names of all of these.
    """
    sections = {"params": set(params), "plan": set(PLAN_KEYS)}
    result: dict[str, dict[str, Any]] = {"params": {}, "plan": {}}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        whole, dot, part = key.removeprefix("params.").partition(".")
        if dot and whole in sections["params"]:
            fix = f"Write {whole}='{{\"{part}\": VALUE, ...}}'"
            raise UserError(f"The parameter {whole} is set as a whole", got=key, fix=fix)
        if section not in ("", "params", "plan"):
            raise unknown("section", section, ("params", "plan", "resources", "search"))
        homes = [home for home, names in sections.items() if name in names and section in ("", home)]
        if not homes:
            if other := next((home for home, names in sections.items() if name in names), None):
                raise UserError(f"{name} is a key of {other}, not of {section}", got=key, fix=f"Write {name}=VALUE")
            names = sections["params"] | sections["plan"]
            raise mistaken(key, value, names) if mistaken else unknown("parameter", key, names)
        if name in result[homes[0]]:
            raise _twice(name, result[homes[0]][name], value)
        result[homes[0]][name] = value
    return result["params"], result["plan"]


def validate(model: type[M], values: Mapping[str, Any], kind: str, places: Mapping[str, str] | None = None) -> M:
    """Build a pydantic model. Raises UserError for the first problem, with the place of a value that is from YAML."""
    fields = model.model_fields
    for name, value in values.items():
        if isinstance(value, bool) and name in fields and not takes_bool(fields[name].annotation):
            where = f" ({places[name]})" if places and name in places else ""
            raise UserError(f"{kind.capitalize()} {name}{where} is not valid", got=value, allowed="no true or false")
    values = {name: _choice(fields[name].annotation, v) if name in fields else v for name, v in values.items()}
    try:
        return model(**values)
    except ValidationError as error:
        raise _sentence(error, model, kind, places or {}) from None
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:  # pydantic lets them pass
        raise UserError(
            f"A validator of {model.__module__}.{model.__qualname__} has failed: {type(error).__name__}: "
            f"{one_line(error)}", fix="It refuses a value by a ValueError",
        ) from error  # fmt: skip


def _choice(annotation: Any, value: Any) -> Any:
    """The number of a Literal or an Enum that the text ``value`` stands for. pydantic converts text to no choice."""
    choices: list[Any] = []
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Literal:
            choices += get_args(part)
        elif isinstance(part, type) and issubclass(part, Enum):
            choices += [member.value for member in part]
    if not isinstance(value, str) or value in choices:
        return value
    return next((c for c in choices if isinstance(c, int | float) and json.dumps(c) == value), value)


def takes_bool(annotation: Any) -> bool:
    """Whether a field's type has booleans. pydantic would make them numbers elsewhere."""
    if annotation in (bool, Any, object, JsonValue) or isinstance(annotation, bool):
        return True
    return any(map(takes_bool, get_args(annotation)))


def validate_part(
    model: type[BaseModel], values: Mapping[str, Any], kind: str, places: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Validate some fields separately; conditions between fields cannot be checked before all are given."""
    if unexpected := set(values) - set(model.model_fields):
        validate(model, {name: values[name] for name in unexpected}, kind, places)
    fields: dict[str, Any] = {name: (model.model_fields[name].annotation, model.model_fields[name]) for name in values}
    part = create_model("Part", __config__=model.model_config, **fields)
    return as_json(validate(part, values, kind, places))


def as_json(params: BaseModel) -> dict[str, Any]:
    """The values of parameters as JSON has them. Raises UserError for those that it does not have."""
    try:
        return params.model_dump(mode="json", warnings=False)
    except PydanticSerializationError as error:
        raise UserError("The parameters cannot be recorded", got=one_line(error), fix=NOT_JSON) from None


def _sentence(error: ValidationError, model: type[BaseModel], kind: str, places: Mapping[str, str]) -> UserError:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"][:1])
    where = f" ({places[name]})" if name in places else ""
    if problem["type"] == "extra_forbidden":
        return unknown(f"{kind}{where}", name, model.model_fields)
    if not name:  # a condition between fields: the model's message is complete
        return UserError(problem["msg"].removeprefix("Value error, "))
    if problem["type"] == "value_error":  # so is that of a field's validator
        return UserError(
            f"{kind.capitalize()} {name}{where} is not valid: {problem['msg'].removeprefix('Value error, ')}"
        )
    if problem["type"] == "missing":
        return UserError(f"{kind.capitalize()} {name} has no default", fix=f"Add {name}=VALUE")
    # For a field of several types pydantic reports one problem a type.
    alike = [other for other in error.errors() if other["loc"][:1] == problem["loc"][:1]]
    allowed = " or ".join(dict.fromkeys(map(allowed_values, alike)))
    got = problem["input"]
    fix = None
    if isinstance(got, str) and "expected" in (problem.get("ctx") or {}):
        choices = [choice.strip(" '") for choice in str(allowed).replace(" or ", ",").split(",")]
        if close := nearest(got, choices):
            fix = f"Did you mean {close!r}?"
    return UserError(f"{kind.capitalize()} {name}{where} is not valid", got=short_repr(got), allowed=allowed, fix=fix)


def allowed_values(problem: Any) -> str:
    """What a field may be, from a problem that pydantic reports."""
    if (written := WRITTEN.get(problem["type"])) is not None:
        return written
    message: str = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return str((problem.get("ctx") or {}).get("expected", message.partition(", unable to")[0]))


def _twice(key: str, first: Any, second: Any) -> UserError:
    return UserError(f"{key} is given twice", got=f"{first} and {second}", fix="Keep one")


def _parse(key: str, value: str) -> Any:
    if value == "null":  # as in YAML; "none" is a value of some parameters
        return None
    if value.startswith(("[", "{")):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise UserError(f"The value of {key} is not a JSON list or object", got=repr(value)) from None
    return value  # pydantic converts text to the type of the field


def _keep_text(node: Any) -> None:
    """Read ``1:4`` as text, in YAML 1.1 the number 64 to base 60, and ``off`` and ``yes``, there booleans."""
    waiting = [node]
    seen = set[int]()
    keys = set[int]()
    while waiting:
        node = waiting.pop()
        if node.id == "scalar":
            boolean = node.tag == BOOLEAN and node.value.lower() not in ("true", "false") and id(node) not in keys
            if boolean or (node.tag in NUMBERS and ":" in node.value):
                node.tag = NAMES[0]
        elif id(node) not in seen:
            seen.add(id(node))
            keys |= set() if node.id == "sequence" else {id(key) for key, _ in node.value}
            waiting += node.value if node.id == "sequence" else [part for pair in node.value for part in pair]


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _lines(node: Any, prefix: str, lines: dict[str, int], file: Path) -> None:
    if node.id != "mapping":
        return
    for key, value in node.value:
        if prefix.count(".") < 2 and key.tag not in NAMES:
            raise UserError(
                f"{file}, line {key.start_mark.line + 1}: a key must be a name", got=key.value, fix="Put it in quotes"
            )
        path = f"{prefix}{key.value}"
        if path in lines:
            raise UserError(f"{file}, line {key.start_mark.line + 1}: {path} is given twice", fix="Keep one")
        lines[path] = key.start_mark.line + 1
        _lines(value, f"{path}.", lines, file)
