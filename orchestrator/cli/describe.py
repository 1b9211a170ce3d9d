"""Lists of workloads, their parameters, and datasets. Nothing here imports PyTorch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from orchestrator.config import workload_loader
from orchestrator.config.parsing import NOT_JSON
from orchestrator.config.plan import PLAN_KEYS, Plan
from orchestrator.console import json_line
from orchestrator.errors import DONE, USAGE, UserError, one_line, unknown
from orchestrator.search import spaces
from orchestrator.storage.settings import Settings
from workloads.catalog import broken, catalog
from workloads.data import datasets, stores
from workloads.data.errors import DataError
from workloads.data.files import plain_or_gz
from workloads.data.interactions.tables import is_path
from workloads.data.source import Dataset
from workloads.loss_table import features

PIPED_WIDTH = 100  # columns, if the output is not a terminal

TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list", "object": "mapping"}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def print_workloads(as_json: bool) -> None:
    """Print all workloads, third-party ones included: name and summary, or why it cannot be loaded."""
    rows: list[dict[str, Any]] = [
        {"name": name, "summary": entry.summary, "broken": None} for name, entry in sorted(catalog().items())
    ]
    rows += [
        {"name": name, "summary": None, "broken": f"cannot be loaded: {why}"} for name, why in sorted(broken().items())
    ]
    if as_json:
        print(json_line(rows))
        return
    _print_table(("workload", "summary"), ([row["name"], row["summary"] or row["broken"]] for row in rows))
    print("\nFor the parameters of one: orchestrator workloads NAME")


def print_parameters(name: str, as_json: bool) -> None:
    """Print the settings for ``key=value``: the workload's parameters and the plan.

    As JSON, each is its JSON Schema (``type, default, minimum, enum, description`` ...) with ``name`` and ``section``
    (``params`` or ``plan``); presets and rows of tables, such as losses, have ``source`` and their settings; search
    spaces have what they search. Raises UserError for an unknown workload, with the nearest name.
    """
    entry = workload_loader.entry(name)
    params = list(_properties(_schema(workload_loader.params(name))))
    plan = [(key, schema) for key, schema in _properties(Plan.model_json_schema()) if key in PLAN_KEYS]
    presets = workload_loader.presets(name)
    tables = workload_loader.tables(name)
    searched = spaces.summaries(name)
    if as_json:
        sections = {"params": params, "plan": plan}
        rows = [
            {"name": key, "section": section, **schema} for section, group in sections.items() for key, schema in group
        ]
        rows += [
            {"name": key, "section": "preset", "source": preset.source, "settings": dict(preset.settings)}
            for key, preset in presets.items()
        ]
        rows += [
            {"name": key, "section": choice, "source": row.source, "params": _defaults(row.params), **_features(row)}
            for choice, table in tables.items()
            for key, row in table.items()
        ]
        rows += [{"name": key, "section": "space", "description": what} for key, what in searched.items()]
        print(json_line(rows))
        return
    print(f"{name}: {entry.summary}\n")
    _print_parameters("parameter", params)
    print("\nThe plan, the same for every workload:\n")
    _print_parameters("plan", plan)
    for choice, table in tables.items():
        print(f"\nThe parameters of each {choice}, with their defaults:\n")
        columns = list(_features(next(iter(table.values()))))
        lines = (
            [key, _words(_defaults(row.params)), *_features(row).values(), row.source] for key, row in table.items()
        )
        _print_table((choice, "parameters", *(name.replace("_", " ") for name in columns), "source"), lines)
    if presets:
        print("\nPublished settings, used with --preset NAME:\n")
        lines = ([key, preset.source, _words(preset.settings)] for key, preset in presets.items())
        _print_table(("preset", "source", "settings"), lines)
    print(f"\nSet them with key=value, such as: orchestrator run {name} epochs=10")
    if searched:
        print("\nSearch spaces, used with sweep --space NAME:\n")
        _print_table(("space", "what it searches"), map(list, searched.items()))


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a workload's parameters, with the defaults that follow from other defaults."""
    try:
        schema = model.model_json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise UserError("The parameters cannot be recorded", got=one_line(error), fix=NOT_JSON) from None
    with suppress(ValidationError):  # a parameter has no default
        for key, value in model().model_dump(mode="json").items():
            schema["properties"][key]["default"] = value
    return schema


def _defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults as JSON values; a computed one as text."""
    return {name: str(value) if callable(value) else value for name, value in params.items()}


def _features(row: Any) -> dict[str, str]:
    """What a row says in addition to its parameters and source; a third party's row may be of any class."""
    return features(row) if is_dataclass(row) else {}


def print_datasets(settings: Settings, as_json: bool) -> None:
    """Print all datasets: name, kind, state (present, missing or damaged), location, summary.

    Files that have not changed since they were last read are not read again; ``data verify`` reads every byte.
    """
    rows = [
        {
            "name": dataset.name,
            "kind": dataset.kind,
            "state": state(dataset, settings.data),
            "where": _where(dataset, settings.data),
            "summary": dataset.summary,
        }
        for dataset in datasets.DATASETS.values()
    ]
    if as_json:
        print(json_line(rows))
        return
    _print_table(("dataset", "kind", "state", "where", "summary"), (list(row.values()) for row in rows))
    print()
    for row in rows:
        if command := remedy(datasets.DATASETS[row["name"]], row["state"]):
            print(f"{row['name']} is {row['state']}: {command}")


def verify_datasets(settings: Settings, names: Sequence[str]) -> int:
    """Read every byte of the named datasets, by default of all present ones; print each problem with file and line.

    Of an intact one the test examples that also are in the training part are counted.

    Returns the exit code: 0 if all are intact, else 2. Raises UserError for an unknown name, with the nearest.
    """
    for name in names:
        if name not in datasets.DATASETS and not is_path(name):
            raise unknown("dataset", name, datasets.DATASETS)
    chosen = names or [dataset.name for dataset in datasets.DATASETS.values() if _exists(dataset, settings.data)]
    if not chosen:
        print(f"No dataset is present below {settings.data}")
    damaged = False
    for name in chosen:
        try:
            problems = datasets.verify(name, settings.data)
        except DataError as error:  # a path that is no dataset
            raise UserError(str(error)) from None
        overlap = None
        try:
            overlap = None if problems else datasets.overlap(name, settings.data)
        except DataError as error:  # damage that only decoding shows, as of an image
            problems = [str(error)]
        damaged |= bool(problems)
        dataset = datasets.dataset(name)
        where = f"intact, below {settings.data}" if dataset.files else _where(dataset, settings.data)
        intact = "intact" if "/" in name else where
        print("\n".join(f"{name}: {text}" for text in problems or [intact]))
        if overlap:
            print(f"{name}: {overlap}")
    return USAGE if damaged else DONE


def state(dataset: Dataset, root: Path) -> Literal["present", "missing", "damaged", "not staged"]:
    """The state of a dataset below the data root. One without files is present if it can be generated or fetched.

    Below the copy of an object store, one is looked at that has been staged.
    """
    folder = dataset.folder_in(root)
    if dataset.files and stores.uri_of(folder) and not stores.is_staged(folder):
        return "not staged"
    try:
        datasets.check(dataset.name, root)
    except DataError:
        return "damaged" if _exists(dataset, root) else "missing"
    return "present"


def remedy(dataset: Dataset, state: str) -> str | None:
    """The command that repairs or fetches a dataset; None if it is present."""
    if state == "damaged":
        return f"orchestrator data verify {dataset.name}"
    if state == "missing":
        return f"orchestrator data fetch {dataset.name}" if dataset.files else datasets.install(dataset)
    return None


def _where(dataset: Dataset, root: Path) -> str:
    return str(dataset.folder_in(root)) if dataset.files else dataset.obtain or "generated"


def _exists(dataset: Dataset, root: Path) -> bool:
    return any(plain_or_gz(dataset.folder_in(root) / source.path).exists() for source in dataset.files_in(root))


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A model's fields with their JSON Schemas, references resolved and alternatives in one flat ``anyOf``."""
    for name, field in schema["properties"].items():
        options = list(_flat(field, schema.get("$defs", {})))
        kinds = options[0] if len(options) == 1 else {"anyOf": options}
        own = {key: value for key, value in field.items() if key not in ("title", "anyOf", "$ref")}
        yield name, {**kinds, **own}


def _flat(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        yield from _flat(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _flat(option, definitions)
    else:
        yield {key: value for key, value in schema.items() if key != "title"}


def _print_parameters(kind: str, fields: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    rows = ([name, _type(schema), _default(schema), _allowed(schema), schema.get("description", "")]
            for name, schema in fields)  # fmt: skip
    _print_table((kind, "type", "default", "allowed", "meaning"), rows)


def _words(settings: Mapping[str, Any]) -> str:
    """Settings as ``key=value`` words."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _options(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return schema.get("anyOf") or [schema]


def _type(schema: Mapping[str, Any]) -> str:
    names = [option.get("type") for option in _options(schema)]
    return " or ".join(dict.fromkeys(TYPES.get(str(name), "any") for name in names if name != "null"))


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return "required"
    value = schema["default"]
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(schema: Mapping[str, Any]) -> str:
    return ", ".join(text for option in _options(schema) if (text := _range(option)))


def _range(option: Mapping[str, Any]) -> str:
    if "enum" in option or "const" in option:
        return ", ".join(map(str, option.get("enum", [option.get("const")])))
    if option.get("type") in ("boolean", "null"):
        return "true, false" if option["type"] == "boolean" else "null"
    return ", ".join(f"{sign} {json.dumps(option[bound])}" for bound, sign in BOUNDS.items() if bound in option)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without borders, so that grep and cut work; the last column wraps."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns[:-1]:
        table.add_column(name.upper(), overflow="fold")
    table.add_column(columns[-1].upper(), overflow="fold", ratio=1)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
