"""Conditional parameters: defaults where another parameter's value uses them, errors where nothing does.

In the parameter model a conditional parameter defaults to None; its real default comes from the rule that applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from pydantic_core import CoreSchema, PydanticCustomError, core_schema

T = TypeVar("T")

Rules: TypeAlias = Mapping[tuple[str, Any], Mapping[str, Any]]
"""(parameter, value) -> parameters used with it and their defaults; a callable default gets the values so far."""


def rules_of(tables: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, Any], Mapping[str, Any]]:
    """The rules of the rows that ``tables`` hold now, by the parameter that names a row: their ``params``."""
    return {(choice, name): row.params for choice, table in tables.items() for name, row in table.items()}


@dataclass(frozen=True)
class Computed:
    """A default computed from the values set so far; ``text`` describes it."""

    text: str
    function: Callable[[Mapping[str, Any]], Any]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        return self.function(values)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ConditionalParams:
    """The rules of a workload, in the order in which they fill defaults: a filled default may make a later rule apply.

    ``rules`` is a function, so that a row added to a loss table takes effect at once. ``choices`` are the defaults of
    the parameters that decide which rules apply. ``computed`` are defaults of parameters that are always used; they are
    filled first.
    """

    rules: Callable[[], Rules]
    choices: Mapping[str, Any]
    computed: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def fill_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``given``, completed by the computed defaults and those of the rules that apply.

        A conditional parameter that is None is left out: it is unused.
        """
        rules = self.rules()
        conditional = {name for params in rules.values() for name in params}
        values = {name: value for name, value in given.items() if value is not None or name not in conditional}
        applying = (
            params
            for (choice, value), params in rules.items()
            if _equals(values.get(choice, self.choices.get(choice)), value)
        )
        for params in chain([self.computed], applying):
            for name, default in params.items():
                if values.get(name) is None:
                    values[name] = default(values) if callable(default) else default
        return values

    def unused_parameter_error(self, values: Mapping[str, Any]) -> str | None:
        """A message about the first conditional parameter that is set and unused, or None.

        Args:
            values: complete and validated.
        """
        rules = self.rules()
        used = {name for (choice, value), params in rules.items() if values[choice] == value for name in params}
        for name in sorted({name for params in rules.values() for name in params} - used):
            if values[name] is not None:
                users = [rule for rule, params in rules.items() if name in params]
                chosen = ", ".join(f"{choice}={_text(values[choice])}" for choice in dict.fromkeys(c for c, _ in users))
                fix = " or ".join(f"{choice}={_text(value)}" for choice, value in users)
                return f"{name}={values[name]} has no effect with {chosen}. Drop {name}, or set {fix}"
        return None


def required(value: T | None) -> T:
    """A value that is None with other parameters, such as a conditional parameter, where these give it."""
    assert value is not None
    return value


def _equals(given: Any, value: Any) -> bool:
    """Whether ``given`` equals ``value`` after pydantic's conversion of booleans."""
    if isinstance(value, bool):
        return (str(given).lower() in ("1", "true", "yes", "on", "y", "t")) is value
    return str(given) == str(value)


def _text(value: Any) -> str:
    """As on a command line, where ``none`` is a value of some parameters."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def out_of_bounds_error(
    values: Mapping[str, Any], bounds: Mapping[str, tuple[float, float]], choices: tuple[str, ...]
) -> str | None:
    """A message about the first number outside its closed interval, or None.

    For parameters that may also be a string, and for those whose bounds depend on another parameter.

    Args:
        values: complete and validated.
        bounds: smallest and largest value by parameter.
        choices: the parameters that the bounds depend on, for the message.
    """
    for name, (least, most) in bounds.items():
        value = values[name]
        if isinstance(value, float) and not least <= value <= most:
            chosen = ", ".join(f"{choice}={_text(values[choice])}" for choice in choices)
            end = ")" if float(f"{most:g}") > most else "]"  # the bound is just below a number, which is excluded
            return f"{name}={value:g} of {chosen} is not in [{least:g}, {most:g}{end}"
    return None


class OneOf:
    """Annotation of a parameter that names a row of a table, including rows added later."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, core_schema.str_schema())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.table)}

    def _check(self, name: str) -> str:
        if name not in self.table:
            *names, last = map(repr, self.table)
            expected = f"{', '.join(names)} or {last}" if names else last
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return name
