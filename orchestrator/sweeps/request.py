"""Build a complete, checked spec from a file, ``key=value`` words and flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from orchestrator.cluster import preflight
from orchestrator.cluster.connection import this_machine
from orchestrator.config import objectives, workload_loader
from orchestrator.config.options import RESOURCES, mistaken_key
from orchestrator.config.parsing import Document, read_experiment, split_keys, validate, validate_part
from orchestrator.config.plan import PLAN_KEYS, Plan
from orchestrator.config.spec import ExperimentSpec, Resources, Search, SweepSpec
from orchestrator.errors import UserError, unknown
from orchestrator.runs import secret_params, start_point
from orchestrator.search import trusted_spaces
from orchestrator.storage.settings import Settings

_OWN = {"decide_at", "refit", "init"}
"""Settings of the plan that a run does not take over from the one it goes on from."""


def by_name(given: Mapping[str, Any], *, python: bool = False) -> dict[str, Any]:
    """Arguments of :func:`experiment`, or of :func:`sweep` if ``given`` has ``trials``, from a command's flags.

    ``python``: errors name keywords instead of flags.
    """
    arguments = {name: given[name] for name in ("seed", "local")} | {"python": python}
    arguments["config"] = Path(given["config"]) if given["config"] else None
    arguments["preset"] = given["preset"]
    arguments["origin"] = given["origin"]
    arguments["resources"] = {name: given[name] for name in RESOURCES}
    if "trials" in given:
        pack = given["pack"]
        search = {name: given[name] for name in Search.model_fields}
        search |= {name: tuple(given[name] or ()) for name in ("warm_start", "constraint")}
        arguments["max_cost"] = given["max_cost"]
        search["pack"] = int(pack) if isinstance(pack, str) and pack.isdigit() else pack
        arguments["search"] = {name: value for name, value in search.items() if value not in (None, ())}
    return arguments


class RequestOptions(TypedDict, total=False):
    """What is given for a run or sweep besides its workload. ``python``: errors name keywords instead of flags."""

    config: Path | None
    preset: str | None
    origin: str | None
    overrides: Mapping[str, Any] | None
    seed: int | None
    resources: Mapping[str, Any] | None
    local: bool
    python: bool


def experiment(
    workload: str | None,
    settings: Settings,
    *,
    say: Callable[[str], None] = lambda line: None,
    **given: Unpack[RequestOptions],
) -> ExperimentSpec:
    """Spec of one experiment. Raises UserError for the first error, including missing or invalid data.

    ``say`` prints what is decided on the cluster, and what ``accumulate=auto`` changes.
    """
    if stray := next((key for key in given.get("overrides") or () if key.startswith("search.")), None):
        raise UserError(f"{stray} is a setting of sweeps", fix="Remove it, or use orchestrator sweep")
    request = _Request("run", workload, settings, given)
    source = request.source
    params = preflight.parameters(request.workload, request.params, request.places("params"))
    secret_params.check_none(params)  # of the defaults too
    elsewhere = request.elsewhere
    preflight.dataset(request.workload, params, settings.data, elsewhere=elsewhere)
    devices = request.resources(whole_machine=True)
    plan = request.plan()
    preflight.limits(request.workload, params, devices, plan)
    preflight.batch(params, devices, plan)
    refit = objectives.of_plan(request.workload, plan)[0].refit and source is None
    plan = plan if plan.refit is not None else plan.model_copy(update={"refit": refit})
    preflight.schedule(request.workload, params, plan, bool(plan.refit))
    note = preflight.micro_batches(request.workload, params, plan)
    preflight.data(request.workload, params, settings.data, plan.refit, elsewhere=elsewhere)
    if note:
        say(note)
    devices = request.decide_gpus(devices, [params], say)
    devices.report_unused_limit(say)
    if not elsewhere and not devices.gpus_per_worker:  # training takes this machine's memory
        preflight.memory(request.workload, params, settings.data)
    spec = ExperimentSpec(workload=request.workload, params=params, plan=plan, seed=request.seed, resources=devices)
    if source is None:
        return spec
    start_point.check(source, spec)
    return spec.model_copy(update={"origin": source.origin})


def sweep(
    workload: str | None,
    settings: Settings,
    *,
    search: Mapping[str, Any] | None = None,
    max_cost: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    **given: Unpack[RequestOptions],
) -> SweepSpec:
    """Spec of one sweep. Samples the search space, so that parameters no trial could run with are refused here.

    ``say`` prints what is decided on the cluster, and what ``accumulate=auto`` changes.
    """
    from orchestrator.search import grid, spaces, strategy, user_search

    request = _Request("sweep", workload, settings, given)
    source = request.source
    params = workload_loader.params(request.workload)
    fixed = validate_part(params, request.params, "parameter", request.places("params"))
    plan = request.plan()
    if plan.refit == "only":
        raise UserError(
            "A sweep selects on validation, so refit=only is not possible", allowed="refit=true, refit=false",
            fix="Remove refit",
        )  # fmt: skip
    given_search = {**request.section("search"), **_given(search or {})}
    chosen = validate(Search, given_search, "search setting", request.places("search"))
    chosen = user_search.complete(chosen)
    space = spaces.load(request.workload, chosen.space)
    named = (request.workload, chosen.space)
    devices = request.resources(whole_machine=False)
    if devices.min_workers:
        raise UserError(
            "A sweep's trials have a fixed number of workers",
            got=f"workers={devices.fewest_workers}:{devices.workers}",
            fix=f"Use --workers {devices.workers}; the number of trials at once follows the cluster's size",
        )  # fmt: skip

    selects_by = objectives.of_plan(request.workload, plan)
    if source is not None:
        _check_fork(chosen)
        plan = plan if plan.refit is not None else plan.model_copy(update={"refit": False})
        searched = spaces.probe(space, fixed, params, request.seed, named=named).distributions
        fixed = {name: value for name, value in request.inherited().items() if name not in searched} | fixed
    refit = selects_by[0].refit if plan.refit is None else bool(plan.refit)

    elsewhere = request.elsewhere
    sampled: list[Mapping[str, Any]] = []
    notes: set[str | None] = set()

    def check(complete: Mapping[str, Any]) -> None:
        sampled.append(complete)
        secret_params.check_none(complete)
        preflight.dataset(request.workload, complete, settings.data, elsewhere=elsewhere)
        preflight.limits(request.workload, complete, devices, plan)
        preflight.batch(complete, devices, plan)
        preflight.schedule(request.workload, complete, plan, refit)
        notes.add(preflight.micro_batches(request.workload, complete, plan))
        preflight.data(request.workload, complete, settings.data, elsewhere=elsewhere)

    survey = spaces.probe(space, fixed, params, request.seed, check, named)
    if not survey.distributions:
        raise UserError(
            "Nothing is left to search: the space suggests no parameter that is not fixed",
            got=", ".join(fixed) or "none",
            fix="Fix fewer parameters, or suggest one in the space: trial.suggest_float(...)",
        )
    why = None
    if chosen.sampler == "auto":
        points: int | None = None
        with suppress(grid.NoGrid):
            points = len(grid.points(space, fixed, chosen.trials, params))
        sampler, why = strategy.choose_sampler(chosen, selects_by, points)
        chosen = chosen.model_copy(update={"sampler": sampler})
        say(f"Sampler: {sampler} ({why}; --sampler sets it)")
    if chosen.sampler == "grid":
        size = len(grid.points(space, fixed, params=params))
        asked_for = chosen.trials if "trials" in chosen.model_fields_set else size
        chosen = chosen.model_copy(update={"trials": min(size, asked_for)})
    for note in sorted(filter(None, notes)):
        say(note)
    devices = request.decide_gpus(devices, sampled, say)
    devices.report_unused_limit(say)
    if not elsewhere and not devices.gpus_per_worker:
        preflight.memory(request.workload, sampled[0], settings.data)
    if max_cost is not None:
        chosen = _within_cost(chosen, max_cost, devices, settings, say)
    chosen, plan = strategy.complete(chosen, plan, devices, selects_by, survey, params, local=request.local)
    spec = SweepSpec(
        workload=request.workload, fixed=fixed, plan=plan, seed=request.seed, resources=devices, search=chosen,
        sampler_reason=why, origin=source.origin if source else None,
    )  # fmt: skip
    if source is not None:
        start_point.check(source, spec)
    from orchestrator.sweeps import pack_plan  # imports PyTorch, so it comes after the other checks

    pack_plan.pack_size(spec)  # raises if the workload does not support the pack
    return spec


class _Request:
    """Merged settings. Precedence: flags, ``key=value``, file, preset."""

    def __init__(self, verb: str, workload: str | None, settings: Settings, given: RequestOptions) -> None:
        self._settings = settings
        self._python = given.get("python", False)
        self.local = given.get("local", False)
        origin = given.get("origin")
        self.source = source = start_point.source(settings, origin) if origin is not None else None
        workload = trusted_spaces.named_workload(workload, settings.home)
        overrides = given.get("overrides") or {}
        config = given.get("config")
        self.elsewhere = bool(settings.ray_address) and not self.local
        self._file = read_experiment(config) if config else Document({}, {}, {})
        self._dotted = {key: value for key, value in overrides.items() if key.startswith(("resources.", "search."))}
        self.workload = workload or self._workload(verb)
        fields = workload_loader.params(self.workload).model_fields
        self._check_sections(fields)
        words = {key: _plain(value) for key, value in overrides.items() if key not in self._dotted}
        mistaken = partial(
            mistaken_key, verb=verb, python=self._python, listed_by=f"orchestrator workloads {self.workload}"
        )
        params, plan = split_keys(words, fields, mistaken)
        self._resources = _given(given.get("resources") or {})
        self._words = {"params": params, "plan": plan, "resources": self._resources}
        preset_params, preset_plan = split_keys(self._preset(given.get("preset")), fields)
        if source and source.spec.workload != self.workload:
            raise UserError(
                f"{source.id} is a run of another workload", got=self.workload, allowed=source.spec.workload
            )
        inherited = source.spec if source and verb == "run" else None
        self.params = {**(inherited.params if inherited else {}), **preset_params, **self.section("params"), **params}
        secret_params.check_none(self.params)
        inherited_plan = source.spec.plan.model_dump(exclude=_OWN, exclude_defaults=True) if source else {}
        self._plan = {**inherited_plan, **preset_plan, **self.section("plan"), **plan}
        self.seed = self._seed(given.get("seed"))

    def _workload(self, verb: str) -> str:
        """The workload of the file, or that of the run of ``--from``."""
        home = self._settings.home
        name = trusted_spaces.named_workload(self._file.values.get("workload"), home)
        if name is not None:
            return name
        if self.source is None:
            line = f"orchestrator {verb} WORKLOAD key=value ..., or --config FILE"
            fix = f"{verb}(WORKLOAD, ...), or config=FILE" if self._python else line
            raise UserError("No workload is given", fix=fix)
        trusted_spaces.check(self.source.spec.workload, home, self.source.id, "workload")
        return self.source.spec.workload

    def _seed(self, given: int | None) -> int:
        """The seed: the given one, that of the file, or that of the run of ``--from``."""
        seed = given
        where = ""
        if given is None:
            seed = self._file.values.get("seed", self.source.spec.seed if self.source else 0)
            where = f" ({self._file.places['seed']})" if "seed" in self._file.places else ""
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise UserError(f"The seed{where} is not valid", got=repr(seed), allowed="an integer from 0 to 2147483647")
        return seed

    def _preset(self, name: str | None) -> Mapping[str, Any]:
        """Settings of the workload's preset ``name``."""
        if name is None:
            return {}
        presets = workload_loader.presets(self.workload)
        if name not in presets:
            raise unknown(f"preset of {self.workload}", name, presets)
        return presets[name].settings

    def _check_sections(self, fields: Collection[str]) -> None:
        """Raise UserError for a key that belongs to another section of the file."""
        sections = {
            "params": fields, "plan": PLAN_KEYS, "resources": Resources.model_fields, "search": Search.model_fields,
        }  # fmt: skip
        for section, own in sections.items():
            for key in self._file.values.get(section) or {}:
                homes = [name for name, names in sections.items() if key in names]
                if homes and key not in own:
                    where = self._file.places.get(f"{section}.{key}", section)
                    raise UserError(f"{key} is a key of {homes[0]}, not of {section}", got=where, fix="Move it there")

    def section(self, name: str) -> dict[str, Any]:
        """Section ``name`` of the file with its ``NAME.key=value`` overrides."""
        dotted = {key.partition(".")[2]: value for key, value in self._dotted.items() if key.startswith(f"{name}.")}
        return {**(self._file.values.get(name) or {}), **dotted}

    def places(self, section: str) -> dict[str, str]:
        """The places in the file of the settings of ``section`` that come from it."""
        prefix = f"{section}."
        own = {key.removeprefix(prefix): place for key, place in self._file.places.items() if key.startswith(prefix)}
        overridden = {*self._words.get(section, ()), *(key.removeprefix(prefix) for key in self._dotted)}
        return {key: place for key, place in own.items() if key not in overridden}

    def inherited(self) -> dict[str, Any]:
        """The parameters of the run of ``--from`` that are no defaults."""
        assert self.source is not None
        defaults = preflight.parameters(self.workload, {})
        return {name: value for name, value in self.source.spec.params.items() if value != defaults.get(name)}

    def plan(self) -> Plan:
        if "decide_at" in self._plan:
            raise UserError("decide_at is set by the scheduler", fix="Use --scheduler")
        plan = validate(Plan, self._plan, "plan setting", self.places("plan"))
        preflight.abstention(self.workload, plan)
        if plan.init:
            plan = plan.model_copy(update={"init": start_point.resolve(self._settings, self.workload, plan.init)})
        return plan

    def resources(self, *, whole_machine: bool) -> Resources:
        """The requested devices. On this machine its cores are divided by the workers. No GPU is chosen yet."""
        values = {**self.section("resources"), **self._resources}
        self._gpus_given = "gpus_per_worker" in values
        most = str(values.get("workers") or 1).rpartition(":")[2]
        if "cpus_per_worker" not in values and not self.elsewhere and whole_machine and most.isdigit():
            values["cpus_per_worker"] = max(1.0, this_machine()[0]["CPU"] // max(1, int(most)))
        resources = validate(Resources, values, "resource", self.places("resources"))
        if self.local and resources.workers > 1:
            what, fix = ("local=True", "Set local=False") if self._python else ("--local", "Remove --local")
            raise UserError(f"{what} runs in one process", got=f"workers={resources.workers}", fix=fix)
        return resources

    def decide_gpus(
        self, devices: Resources, sampled: Sequence[Mapping[str, Any]], say: Callable[[str], None]
    ) -> Resources:
        """``devices`` with a GPU for each worker, if none were requested, there are some, and all parameters use one.

        ``gpus_per_worker`` stays unset where it is open: no GPU is known of, and the parameters can use one. Raises
        UserError (exit 3) when the cluster does not answer.
        """
        if self._gpus_given:
            return devices
        address = self._settings.ray_address if self.elsewhere else None
        gpus = preflight.cluster_gpus(address) if address else this_machine()[0]["GPU"]
        used = all(preflight.uses_gpu(self.workload, params) for params in sampled)
        if used and not gpus:
            if gpus is None:
                say("GPUs of a worker: 0 (the cluster's are not known; --gpus-per-worker sets it)")
            return devices
        if gpus and address:
            why = "decided on the cluster" if used else "these parameters train on CPUs only"
            say(f"GPUs of a worker: {int(used)} ({why}; --gpus-per-worker sets it)")
        return validate(Resources, {**devices.model_dump(), "gpus_per_worker": int(used)}, "resource")


def _within_cost(
    search: Search, cost: float, devices: Resources, settings: Settings, say: Callable[[str], None]
) -> Search:
    """``search`` with the device hours that ``cost`` pays for, if it has no smaller budget. Raises UserError."""
    if not cost > 0:
        raise UserError("The maximum cost is not valid", got=f"{cost:g}", allowed="a number above 0")
    kind = "GPU" if devices.gpus_per_worker else "CPU"
    price = settings.prices.of_device_hour(devices) if settings.prices else 0.0
    if settings.prices is None or not price:
        raise UserError(
            f"A maximum cost needs the price of a {kind} hour, which is not set", got=f"{cost:g}",
            fix=f"Set ORCHESTRATOR_PRICES, such as {kind.lower()}=0.50",
        )  # fmt: skip
    hours = cost / price
    say(f"A cost of {settings.prices.text(cost)} pays for {hours:.4g} {kind} hours of the search")
    return search.model_copy(update={"max_device_hours": min(hours, search.max_device_hours or hours)})


def _check_fork(search: Search) -> None:
    """Raise UserError if the trials of this search cannot go on from the state of a run."""
    if search.scheduler == "pbt" or search.ordered:
        setting = "ordered" if search.ordered else "scheduler=pbt"
        raise UserError("Trials that meet or wait at epochs cannot go on from a later one", got=setting)


def _plain(value: Any) -> Any:
    """A path as text, and a member of an Enum as its value, as the command line gives them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.value if isinstance(value, Enum) else value


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
