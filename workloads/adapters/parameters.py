"""Parameters of a workload from the signature of a function or of classes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

CONFIG = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)


def of_function(function: Callable[..., Any]) -> type[BaseModel]:
    """The annotation of the first argument: a pydantic model as it is, or one made of a dataclass' fields.

    Without an annotation there are no parameters. Raises ValueError for another annotation, and for a function that
    cannot be called with the parameters and a context.
    """
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        taken = ", ".join(inspect.signature(function).parameters) or "no arguments"
        raise ValueError(
            f"{function.__name__} takes {taken}, and is called with the parameters and a context "
            f"(def {function.__name__}(params, ctx))"
        ) from None
    kind = _annotation(function)
    if kind is inspect.Parameter.empty:
        return create_model("Params", __config__=CONFIG)
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return kind
    if not (inspect.isclass(kind) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"the parameters of {function.__name__} are neither a pydantic model nor a dataclass: {kind}")

    def build(params: BaseModel) -> BaseModel:
        try:
            kind(**dict(params))  # the dataclass' own checks
        except (ValueError, AssertionError):
            raise
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return params

    return _model(
        inspect.signature(kind, eval_str=True).parameters.values(), {"build": model_validator(mode="after")(build)}
    )


def argument(function: Callable[..., Any], params: BaseModel) -> Any:
    """What a function is called with: ``params``, or their values as the dataclass of its annotation."""
    kind = _annotation(function)
    return kind(**dict(params)) if inspect.isclass(kind) and dataclasses.is_dataclass(kind) else params


def _annotation(function: Callable[..., Any]) -> Any:
    return next(iter(_signature(function).parameters.values())).annotation


def of_classes(*classes: type[Any]) -> type[BaseModel]:
    """A parameter for each argument of the classes' constructors; of one that several have, the first default."""
    taken: dict[str, inspect.Parameter] = {}
    for cls in classes:
        for parameter in list(_signature(cls.__init__).parameters.values())[1:]:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                taken.setdefault(parameter.name, parameter)
    return _model(taken.values())


def arguments(params: BaseModel, cls: type[Any]) -> dict[str, Any]:
    """The parameters that a class' constructor takes."""
    return {name: value for name, value in dict(params).items() if name in inspect.signature(cls).parameters}


def _model(parameters: Any, validators: dict[str, Any] | None = None) -> type[BaseModel]:
    empty = inspect.Parameter.empty
    fields: dict[str, Any] = {}
    for one in parameters:
        default = ... if one.default is empty else one.default
        if isinstance(default, type(dataclasses.MISSING)) or type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
            raise ValueError(
                f"the parameter {one.name} has a default that is made each time; use a pydantic model for it"
            )
        fields[one.name] = (Any if one.annotation is empty else one.annotation, Field(default))
    return create_model("Params", __config__=CONFIG, __validators__=validators, **fields)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation for type checkers only
        return inspect.signature(function)
