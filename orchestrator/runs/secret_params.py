"""Secrets among the parameters of a run or sweep, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import UserError, mask
from orchestrator.provenance.scrub import scrub


def check_none(params: Mapping[str, Any]) -> None:
    """Raise UserError for a secret or an address with a login: records and MLflow store parameters as they are.

    The path of a file with a secret is none.
    """
    for name, value in params.items():
        text = f"{name}={value}"
        is_path = isinstance(value, str) and value.startswith(("/", "~"))
        if mask(text) != text or (not is_path and scrub(text) != text):
            raise UserError(
                f"The parameter {name} holds a password, but records and MLflow show parameters",
                fix="Let the workload read it from the environment",
            )
