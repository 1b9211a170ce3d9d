"""Specs of experiments and sweeps: frozen, complete, without extra keys. ``fingerprint()`` ignores placement."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.errors import UserError


def _named(value: str) -> str:
    if not re.fullmatch(r"\S.*:[A-Za-z_]\w*", value):
        raise ValueError("module:Class or file.py:Class of Optuna's kind")
    return value


Sampler = Literal["tpe", "gp", "cmaes", "random", "grid", "auto"]
Named = Annotated[str, AfterValidator(_named)]
WRITTEN_BY = "Use the version that wrote it"
ORIGIN = "The state that training goes on from: RUN@EPOCH#DIGEST."
Scheduler = Literal["asha", "hyperband", "median", "racing", "pbt", "none"]


DATA = ("dataset", "split", "eval")
"""Prefixes of the parameters that define the data (see the contract)."""

EVALUATION_DATA = (*DATA, "first_stage")
"""Prefixes of parameters that define the evaluation data, where they are set; all others may differ between models."""


def evaluation_data(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that define the evaluation data."""
    return {name: value for name, value in params.items() if name.startswith(EVALUATION_DATA) and value is not None}


class Resources(BaseModel):
    """Devices of one run or trial. They do not affect results: ``batch_size`` is global for any number of workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(1, ge=1, description="Processes that train one model together (DDP); MIN:MAX is elastic.")
    min_workers: int | None = Field(None, ge=1, description="Fewest workers of an elastic run; unset: all.")
    gpus_per_worker: float = Field(0, ge=0, description="GPUs of a worker; a fraction only with one worker.")
    cpus_per_worker: float = Field(1, gt=0, description="CPUs of a worker.")
    max_gpus: int | None = Field(None, ge=1, description="GPUs that a sweep's trials or a run's workers hold at most.")

    @model_validator(mode="before")
    @classmethod
    def _elastic(cls, values: dict[str, Any]) -> dict[str, Any]:
        """``workers="1:4"`` is ``min_workers=1, workers=4``; ``"4:4"`` is 4, fixed."""
        workers = values.get("workers")
        if not isinstance(workers, str) or ":" not in workers:
            return values
        least, _, most = workers.partition(":")
        if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
            raise ValueError(f"workers={workers} is not valid; allowed: a number, or MIN:MAX with 1 <= MIN <= MAX")
        return {**values, "workers": int(most), "min_workers": int(least) if least != most else None}

    @model_validator(mode="after")
    def _whole_devices_for_groups(self) -> Resources:
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(f"min_workers={self.min_workers} is more than workers={self.workers}; use fewer")
        if self.workers > 1 and self.gpus_per_worker % 1:
            raise ValueError(
                f"gpus_per_worker={self.gpus_per_worker} with {self.workers} workers: workers of one group cannot "
                "share a GPU; use whole GPUs, or one worker"
            )
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker}: a fraction must be below 1")
        return self

    @model_validator(mode="after")
    def _within_the_cap(self) -> Resources:
        gpus = self.workers * self.gpus_per_worker
        if self.max_gpus is not None and gpus > self.max_gpus:
            raise ValueError(
                f"max_gpus={self.max_gpus} is less than the {gpus:g} GPUs of {self.workers} worker(s) with "
                f"{self.gpus_per_worker:g} each; use fewer workers, or a higher max_gpus"
            )
        return self

    def report_unused_limit(self, say: Callable[[str], None]) -> None:
        """Print a sentence for a ``max_gpus`` that limits nothing, since no GPU is requested."""
        if self.max_gpus is not None and not self.gpus_per_worker:
            say(f"max_gpus={self.max_gpus} has no effect: the workers hold no GPU (--gpus-per-worker requests them)")

    @property
    def max_trials(self) -> int | None:
        """Number of trials that ``max_gpus`` allows at once; None without a limit."""
        gpus = self.workers * self.gpus_per_worker
        return int(self.max_gpus / gpus + 1e-9) if self.max_gpus is not None and gpus else None

    def part(self, of: float) -> Resources:
        """The share of each of ``of`` processes that divide these devices."""
        share = {"cpus_per_worker": self.cpus_per_worker / of, "gpus_per_worker": self.gpus_per_worker / of}
        return self.model_copy(update=share)

    @property
    def fewest_workers(self) -> int:
        """Fewest workers that the run starts or continues with."""
        return self.min_workers or self.workers

    def fixed(self, workers: int) -> Resources:
        """The devices of an elastic run while it has ``workers`` workers."""
        return self.model_copy(update={"workers": workers, "min_workers": None})

    def text(self, local: bool = False) -> str:
        """The devices in words; ``local``: of this process."""
        each = f"{self.gpus_per_worker:g} GPU" if self.gpus_per_worker else f"{self.cpus_per_worker:g} CPU"
        count = f"{self.fewest_workers} to {self.workers}" if self.min_workers else f"{self.workers}"
        return f"{each}, in this process" if local else f"{count} worker{'s' * (self.workers > 1)} of {each}"

    @property
    def devices(self) -> float:
        """Number of devices, for an elastic run the maximum: GPUs if there are any, else CPUs."""
        return self.workers * (self.gpus_per_worker or self.cpus_per_worker)


class ExperimentSpec(BaseModel):
    """One experiment: a workload, its complete parameters, a plan with ``refit`` resolved, a seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    params: dict[str, Any]
    plan: Plan = Plan()
    seed: int = Field(0, ge=0, lt=2**31)
    resources: Resources = Resources()
    population: str | None = Field(
        None, description="The PBT sweep that this is a member of: members load each other's checkpoints."
    )
    origin: str | None = Field(None, description=ORIGIN)

    def fingerprint(self) -> str:
        """16 hex digits over everything that affects results, which workers, devices and paths do not."""
        content = {"workload": self.workload, "params": self.params, "plan": _plan(self.plan), "seed": self.seed}
        return digest(content | _origin(self.origin))

    @property
    def identity(self) -> dict[str, str]:
        """Values that a checkpoint must match to be resumed."""
        return {"workload": self.workload, "fingerprint": self.population or self.fingerprint()}

    def command(self) -> str:
        """The command line that repeats this experiment."""
        plan = self.plan.model_dump(mode="json", exclude={"decide_at"}, exclude_defaults=True)
        values = {**self.params, **plan, "objective": ",".join(self.plan.objective) or None}
        nulls = self._nulls() if None in self.params.values() else ()
        words = [f"{key}={_word(value)}" for key, value in values.items() if value is not None or key in nulls]
        devices = self.resources.model_dump(mode="json", exclude_defaults=True)
        if least := devices.pop("min_workers", None):
            devices["workers"] = f"{least}:{self.resources.workers}"
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in devices.items()]
        flags += [f"--from={self.origin}"] if self.origin else []
        return shlex.join(["orchestrator", "run", self.workload, *words, f"--seed={self.seed}", *flags])

    def _nulls(self) -> set[str]:
        """The parameters that are None where their default is a value; empty if the workload cannot be loaded."""
        with suppress(UserError):
            fields = workload_loader.params(self.workload).model_fields
            default = {name: field.get_default() for name, field in fields.items()}
            return {name for name, value in self.params.items() if value is None and default.get(name) is not None}
        return set()


class Search(BaseModel):
    """How a sweep searches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: str = Field("space", description="One of the workload's search spaces, file.py:function or module:function.")
    trials: int = Field(16, ge=1, le=1_000_000, description="Trials in all; of a grid at most (unset: all points).")
    sampler: Sampler | Named = Field(
        "tpe",
        description="Optuna sampler: tpe, gp, cmaes, random, grid, or auto (by the space and the budget); or one of "
        "yours, module:Class or file.py:Class.",
    )
    scheduler: Scheduler | Named = Field(
        "asha",
        description="How weak trials end early: asha, hyperband or median stop them at rungs, racing when their values "
        "by unit say that they cannot win; pbt replaces their state by that of strong ones; none runs all to the end; "
        "or an Optuna pruner of yours, module:Class or file.py:Class, which decides after each tenth of a trial.",
    )
    ordered: bool = Field(
        False,
        description="With racing or median: a trial waits at a rung for those with lower numbers, so that decisions do "
        "not depend on the order of events.",
    )
    seeds: int = Field(1, ge=1, le=100, description="Runs of each configuration; the best mean wins.")
    finalists: int | None = Field(None, ge=2, le=100, description="Best trials that are repeated when the search ends.")
    finalist_seeds: int = Field(3, ge=2, le=100, description="Seeds of each finalist in all.")
    select: Literal["best", "cheapest"] = Field(
        "best", description="The winner: the best trial, or the cheapest of those that cannot be separated from it."
    )
    concurrency: int | None = Field(None, ge=1, description="Trials at once; unset: as many as fit.")
    pack: Literal["auto", "off"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto", description="Trials of one shape trained in one process: auto (where it is faster), off, or a number."
    )
    warm_start: tuple[str, ...] = Field((), description="Earlier sweeps whose trials the sampler learns from.")
    time_budget: float | None = Field(None, gt=0, description="Seconds after which all trials stop and none starts.")
    trial_timeout: float | None = Field(
        None, gt=0, description="Seconds without a report after which a trial fails and its process is killed."
    )
    max_device_hours: float | None = Field(
        None, gt=0, description="Device hours of the search (GPUs, else CPUs): no trial starts that would exceed them."
    )
    constraint: tuple[str, ...] = Field(
        (), description="METRIC<=NUMBER or METRIC>=NUMBER: a trial that violates one does not win."
    )
    until_gain: int | None = Field(
        None, ge=1,
        description="The search ends when so many further trials are expected to gain at most the noise of selecting.",
    )  # fmt: skip
    max_failures: int | None = Field(
        None, ge=1,
        description="Failed trials that stop the sweep; unset: if the first 5 to end fail with one cause, or half of "
        "the first 20 fail.",
    )  # fmt: skip

    @property
    def repeats(self) -> int:
        """Number of the finalists' further runs."""
        return (self.finalists or 0) * (self.finalist_seeds - 1)


class SweepSpec(BaseModel):
    """A sweep: the fixed parameters, and how the others are searched."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    fixed: dict[str, Any] = Field(default_factory=dict)
    plan: Plan = Plan()
    seed: int = Field(0, ge=0, lt=2**31)
    resources: Resources = Resources()
    search: Search = Search()
    sampler_reason: str | None = Field(None, description="Why --sampler auto has chosen the sampler.")
    origin: str | None = Field(None, description=ORIGIN)

    def fingerprint(self) -> str:
        search = self.search.model_dump(
            include={"space", "sampler", "scheduler", "seeds", "constraint", "select", "finalists"}
        )
        # Newer settings: unset, they must not change the fingerprints of old sweeps.
        search = {name: value for name, value in search.items() if value not in ((), 1, "best", None)}
        if self.search.finalists:
            search["finalist_seeds"] = self.search.finalist_seeds
        if self.search.ordered:
            search["ordered"] = True
        return digest(
            {
                "workload": self.workload,
                "fixed": self.fixed,
                "plan": _plan(self.plan),
                "seed": self.seed,
                "search": search,
            }
            | _origin(self.origin)
        )

    def searched(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``params`` that the space gave. It may suggest them by other names, such as the logarithm's."""
        return {name: value for name, value in params.items() if name not in self.fixed}

    def trial_seed(self, number: int, seed: int) -> int:
        """The experiment's seed. It depends on the trial's ``number``, with repeated seeds on ``seed`` only."""
        # Repeated seeds are the same for every configuration, so that chance does not distinguish configurations.
        offset = seed if self.search.seeds > 1 else number
        return (self.seed + 1_000_003 * offset) % 2**31

    def trial(self, number: int, params: Mapping[str, Any], seed: int = 0) -> ExperimentSpec:
        """The experiment of trial ``number`` with one of its seeds; see :meth:`trial_seed`."""
        return ExperimentSpec(
            workload=self.workload,
            params=dict(params),
            plan=self.plan,
            seed=self.trial_seed(number, seed),
            resources=self.resources,
            population=self.fingerprint() if self.search.scheduler == "pbt" else None,
            origin=self.origin,
        )


Spec = TypeVar("Spec", bound=BaseModel)


def parse(model: type[Spec], values: Mapping[str, Any], where: str, fix: str = WRITTEN_BY) -> Spec:
    """Parse what a record has of a spec. Raises UserError with the settings that this version does not accept."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors()
        names = [".".join(map(str, problem["loc"])) for problem in problems]
        strange = [name for name, problem in zip(names, problems) if problem["type"] == "extra_forbidden"]
        what = "has settings that this version does not know" if strange else "is not valid in this version"
        raise UserError(f"The spec of {where} {what}", got=", ".join(strange or names), fix=fix) from None


def _word(value: Any) -> str:
    """A value as text that ``key=value`` parses to the same value."""
    return json.dumps(value) if value is None or isinstance(value, list | dict) else str(value)


def digest(value: Any) -> str:
    """16 hex digits of the canonical JSON of ``value``."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _origin(origin: str | None) -> dict[str, str]:
    # A newer setting, as those of _plan.
    return {"origin": origin} if origin else {}


def _plan(plan: Plan) -> dict[str, Any]:
    # Newer settings: unset, they must not change the fingerprints of old runs.
    unset = {name for name in ("objective", "deterministic", "init", "abstention_part") if not getattr(plan, name)}
    return plan.model_dump(exclude={"checkpoint_every", "log_every"} | unset)
