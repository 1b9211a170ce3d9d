"""Complete parameters of a sweep's trials: the study has only those that are fixed or suggested.

A later version of a workload may have other defaults and further parameters. The sweep's record therefore has the
defaults that it began with, and the names of the parameters that there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.search.spaces import Survey

DEFAULTS = "defaults"
NAMES = "parameters"


def to_record(survey: Survey) -> dict[str, Any]:
    """What a sweep's record says about the parameters that it neither fixes nor searches."""
    return {DEFAULTS: dict(survey.defaults), NAMES: list(survey.names)}


@dataclass(frozen=True)
class TrialParams:
    """Completes parameters with the ``changed`` defaults (then, now) as they were, and with those of this version.

    Parameters are left out that are not in ``names``, those of the sweep's first version: their defaults are what
    it did without them, and the checkpoints of its trials know the others only.
    """

    workload: str
    changed: Mapping[str, tuple[Any, Any]]
    names: frozenset[str] | None

    @classmethod
    def of(cls, workload: str, contract: Mapping[str, Any], survey: Survey) -> TrialParams:
        """From the ``contract`` of a sweep's record. A sweep of 0.1.0 has recorded no defaults."""
        now = survey.defaults
        changed = {
            name: (then, now[name])
            for name, then in contract.get(DEFAULTS, {}).items()
            if then is not None and name in now and now[name] != then
        }
        return cls(workload, changed, frozenset(contract[NAMES]) if NAMES in contract else None)

    def complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UserError."""
        before = {name: then for name, (then, _) in self.changed.items()}
        every = preflight.parameters(self.workload, {**before, **params})
        names = every.keys() if self.names is None else self.names | params.keys()
        return {name: value for name, value in every.items() if name in names}

    def sentence(self, sweep: str) -> str | None:
        """What a resume says about defaults."""
        if self.names is None:
            return (
                f"{sweep} was begun by a version that recorded no defaults: its trials and its winner now have those "
                "of this version, and a trial cannot continue if its parameters have changed"
            )
        if not self.changed:
            return None
        listed = ", ".join(f"{name}={then} (now {now})" for name, (then, now) in sorted(self.changed.items()))
        return f"Trials keep the defaults that {sweep} began with: {listed}"
