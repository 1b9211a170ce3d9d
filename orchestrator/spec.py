"""What is to be run: frozen, complete, no extra keys. ``fingerprint()`` is identity without placement."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.plan import Plan

Sampler = Literal["tpe", "gp", "random", "cmaes"]
Scheduler = Literal["asha", "none"]


class Resources(BaseModel):
    """Devices of one run or trial. Placement, not identity: ``batch_size`` is global, whatever the workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(1, ge=1, description="Processes that train one model together (DDP).")
    gpus_per_worker: float = Field(0, ge=0, description="GPUs of a worker; a fraction only with one worker.")
    cpus_per_worker: float = Field(1, gt=0, description="CPUs of a worker.")

    @model_validator(mode="after")
    def _whole_devices_for_groups(self) -> Resources:
        if self.workers > 1 and self.gpus_per_worker % 1:
            raise ValueError(
                f"gpus_per_worker={self.gpus_per_worker} with {self.workers} workers: workers of one group can "
                "not share a GPU; use whole GPUs, or one worker"
            )
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker}: a fraction must be below 1")
        return self

    @property
    def devices(self) -> float:
        """Devices held: GPUs where there are any, else CPUs."""
        return self.workers * (self.gpus_per_worker or self.cpus_per_worker)


class ExperimentSpec(BaseModel):
    """One experiment: a workload, its complete parameters, a plan with ``refit`` resolved, a seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    params: dict[str, Any]
    plan: Plan = Plan()
    seed: int = Field(0, ge=0, lt=2**31)
    resources: Resources = Resources()

    def fingerprint(self) -> str:
        """16 hex digits over what changes the numbers; workers, devices and paths do not."""
        return digest({"workload": self.workload, "params": self.params, "plan": _plan(self.plan), "seed": self.seed})

    @property
    def identity(self) -> dict[str, str]:
        """What a checkpoint must match to be resumed."""
        return {"workload": self.workload, "fingerprint": self.fingerprint()}

    def command(self) -> str:
        """The one command line that repeats this experiment."""
        plan = self.plan.model_dump(mode="json", exclude={"decide_at"}, exclude_defaults=True)
        words = [f"{key}={value}" for key, value in {**self.params, **plan}.items() if value is not None]
        devices = self.resources.model_dump(mode="json", exclude_defaults=True)
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in devices.items()]
        return shlex.join(["orchestrator", "run", self.workload, *words, f"--seed={self.seed}", *flags])


class Search(BaseModel):
    """How a sweep searches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: str = Field("space", description="Preset of search_spaces/, or file.py:function.")
    trials: int = Field(16, ge=1, le=1_000_000, description="Trials in all.")
    sampler: Sampler = Field("tpe", description="Optuna sampler: tpe, gp, random or cmaes.")
    scheduler: Scheduler = Field("asha", description="asha stops weak trials at rungs; none runs all to the end.")
    concurrency: int | None = Field(None, ge=1, description="Trials at once; unset: as many as fit.")
    time_budget: float | None = Field(None, gt=0, description="Seconds after which no trial starts and all stop.")


class SweepSpec(BaseModel):
    """A sweep: the fixed part of the parameters, and how the rest is searched."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    fixed: dict[str, Any] = Field(default_factory=dict)
    plan: Plan = Plan()
    seed: int = Field(0, ge=0, lt=2**31)
    resources: Resources = Resources()
    search: Search = Search()

    def fingerprint(self) -> str:
        search = self.search.model_dump(include={"space", "sampler", "scheduler"})
        return digest(
            {
                "workload": self.workload,
                "fixed": self.fixed,
                "plan": _plan(self.plan),
                "seed": self.seed,
                "search": search,
            }
        )

    def trial(self, number: int, params: Mapping[str, Any]) -> ExperimentSpec:
        """The experiment of trial ``number``; its seed derives from the sweep's."""
        return ExperimentSpec(
            workload=self.workload,
            params=dict(params),
            plan=self.plan,
            seed=(self.seed + 1_000_003 * number) % 2**31,
            resources=self.resources,
        )


def digest(value: Any) -> str:
    """16 hex digits of the canonical JSON of ``value``."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _plan(plan: Plan) -> dict[str, Any]:
    return plan.model_dump(exclude={"checkpoint_every"})
