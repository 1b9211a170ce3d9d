"""Differences between a recorded run and its repetition: code, packages, machine, data, parameters."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.cluster.connection import this_machine
from orchestrator.config import workload_loader
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.errors import UserError, plural
from orchestrator.provenance import machine
from orchestrator.provenance import record as provenance
from orchestrator.provenance.record import diff_name
from orchestrator.provenance.scrub import scrub
from orchestrator.provenance.source import Source
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.storage.settings import Settings

FIRST = ("ray-experiment-orchestrator", "torch", "numpy", "ray", "optuna", "mlflow", "torchvision", "transformers",
         "pyarrow", "scipy", "cmaes", "pydantic", "safetensors")  # fmt: skip
"""Packages that are listed first, since they can affect results."""

ARITHMETIC = ("OMP_", "MKL_", "OPENBLAS_", "CUBLAS_", "NVIDIA_TF32", "TORCH_", "PYTORCH_", "PYTHONHASHSEED")
"""Prefixes of environment variables that can affect results."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, as text."""

    what: str
    then: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.what}: {self.then or 'none'} then, {self.now or 'none'} now"


def all_of(recorded: Recorded, settings: Settings, sources: Sequence[Source]) -> list[Difference]:
    """All differences, the most important first. Raises UserError for one that makes a repetition impossible."""
    check_params(recorded)
    differences = [*_data(recorded, settings), *_params(recorded)]
    if not recorded.environment:
        return [*differences, Difference("environment", "not recorded, or damaged", "not compared")]
    then = recorded.environment
    return [
        *differences,
        *_code(recorded, sources),
        *_packages(then.get("packages", {}), provenance.packages()),
        *_machine(then, settings),
        *_users_code(recorded),
        *_order(recorded),
    ]


def check_params(recorded: Recorded) -> None:
    """Raise UserError for parameters that the workload no longer has, and for a trial of a PBT sweep."""
    spec = recorded.spec
    if isinstance(spec, ExperimentSpec) and spec.population:
        raise UserError(
            f"{recorded.id} took over states of other trials (PBT), so it cannot be repeated alone",
            fix="Reproduce its sweep",
        )
    fields = workload_loader.params(spec.workload).model_fields
    given = spec.params if isinstance(spec, ExperimentSpec) else spec.fixed
    if gone := sorted(set(given) - set(fields)):
        raise UserError(
            f"The workload {spec.workload} no longer has the parameters of {recorded.id}", got=", ".join(gone),
            fix="Run it with its own version: --script shows how",
        )  # fmt: skip


def space_of(recorded: Recorded, kept: Path) -> str | None:
    """The search space of a sweep; if it is a file that has changed, its recorded copy ``kept``."""
    if not isinstance(recorded.spec, SweepSpec):
        return None
    file, colon, function = recorded.spec.search.space.rpartition(":")
    if not colon or not kept.exists() or _unchanged(Path(file), kept):
        return recorded.spec.search.space
    return f"{kept}:{function}"


def _unchanged(file: Path, kept: Path) -> bool:
    return file.is_file() and scrub(file.read_text("utf-8", "replace")) == kept.read_text("utf-8")


def _data(recorded: Recorded, settings: Settings) -> list[Difference]:
    spec = recorded.spec
    fixed = spec.params if isinstance(spec, ExperimentSpec) else spec.fixed
    now = preflight.fingerprint(spec.workload, {**preflight.parameters(spec.workload, {}), **fixed}, settings.data)
    if recorded.data and now != recorded.data:
        raise UserError(
            f"The data of {recorded.id} are not the data here", got=f"{now}, recorded {recorded.data}",
            fix="Restore the dataset that it was run on, or name it with ORCHESTRATOR_DATA",
        )  # fmt: skip
    then = recorded.environment.get("inputs", {})
    for name, content in preflight.input_files(spec.workload, fixed).items():
        if then.get(name, content) != content:
            raise UserError(
                f"The file of {name} of {recorded.id} has changed", got=f"{content}, recorded {then[name]}",
                fix="Restore the file that it was run with",
            )  # fmt: skip
    return [] if recorded.data or not now else [Difference("data", "not recorded", now)]


def _params(recorded: Recorded) -> list[Difference]:
    """Parameters that are new or have another value now."""
    if not isinstance(recorded.spec, ExperimentSpec):
        return []
    then = recorded.spec.params
    now = preflight.parameters(recorded.spec.workload, then)
    changed = [name for name in now if name not in then or then[name] != now[name]]
    return [Difference(f"parameter {name}", str(then.get(name)), str(now[name])) for name in changed]


def _code(recorded: Recorded, sources: Sequence[Source]) -> list[Difference]:
    old = {source["name"]: (number, source) for number, source in enumerate(recorded.environment.get("sources", []))}
    new = {source.name: source for source in sources}
    differences = []
    for name in dict.fromkeys([*old, *new]):
        number, then = old.get(name, (0, {}))
        now = new.get(name, Source(name, None))
        if then.get("commit") != now.commit:
            commits = [commit and commit[:12] for commit in (then.get("commit"), now.commit)]
            differences.append(Difference(f"commit of {name}", *commits))
        file = recorded.files / diff_name(number, name)
        kept = file.read_bytes().decode("utf-8", "surrogateescape") if then.get("diff") and file.exists() else ""
        if kept != now.diff or tuple(then.get("changed", ())) != now.changed:
            before = _changes(then.get("changed", ()), kept)
            after = _changes(now.changed, now.diff)
            differences.append(
                Difference(f"uncommitted changes of {name}", before, f"{after}, others" if before == after else after)
            )
        if left := [item for item in then.get("left_out", ()) if not item.endswith("no source file")]:
            names = ", ".join(item.partition(":")[0] for item in left[:3])
            if len(left) > 3:
                names += f" and {len(left) - 3} more"
            differences.append(Difference(f"changes of {name} that the record lacks", names, "not compared"))
    for resumed in recorded.environment.get("resumed", []):
        later = {source["name"]: source.get("commit") for source in resumed.get("sources", [])}
        if any(later.get(name) != then.get("commit") for name, (_, then) in old.items()):
            other = f"other commits at {resumed['time']}"
            differences.append(Difference("code of a resume", other, "one commit throughout"))
    return differences


def _changes(changed: Sequence[str], diff: str) -> str | None:
    count = max(diff.count("diff --git "), len(changed))
    return plural(count, "file") if count else None


def _packages(then: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    names = [*(name for name in FIRST if name in then or name in now), *sorted({*then, *now} - set(FIRST))]
    return [Difference(f"package {n}", then.get(n), now.get(n)) for n in names if then.get(n) != now.get(n)]


def _machine(then: Mapping[str, Any], settings: Settings) -> list[Difference]:
    old = then.get("machine", {})
    new = machine.describe()
    pairs = {
        "python": (then.get("python"), platform.python_version()),
        "platform": (then.get("platform"), platform.platform()),
        "processor": (old.get("cpu"), new["cpu"]),
        "cores": (old.get("cpus"), new["cpus"]),
        "GPUs of this machine": (", ".join(old.get("gpus", ())), ", ".join(new["gpus"])),
    }
    if then.get("cluster"):
        here = f"the one at {settings.ray_address}" if settings.ray_address else _here(new, then["cluster"])
        pairs["cluster"] = (machine.shape(then["cluster"]), here)
    before = then.get("variables", {})
    after = provenance.variables() if "variables" in then else {}
    for name in sorted({*before, *after}):
        if name.startswith(ARITHMETIC):
            pairs[f"variable {name}"] = (before.get(name), after.get(name))
    return [Difference(what, _text(before), _text(after)) for what, (before, after) in pairs.items() if before != after]


def _here(this: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """This machine as a cluster, with Ray's names of its GPUs from the record: ``H100`` for NVIDIA H100 80GB."""
    kinds = {kind for node in then["nodes"] for kind in node["gpus"]}
    called = {next((kind for kind in kinds if _plain(kind) in _plain(gpu)), gpu) for gpu in this["gpus"]}
    return machine.shape({"nodes": [{**this_machine()[0], "gpus": sorted(called)}]})


def _plain(name: str) -> str:
    return re.sub(r"\W", "", name).lower()


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _users_code(recorded: Recorded) -> list[Difference]:
    """Files of the user's workload, search space, sampler and scheduler that are not those of the record."""
    spec = recorded.spec
    named = {"workload": spec.workload}
    if isinstance(spec, SweepSpec):
        named |= {name: getattr(spec.search, name) for name in ("space", "sampler", "scheduler")}
    differences = []
    for setting, code in named.items():
        name = provenance.CODE[setting]
        what = "search space" if setting == "space" else setting
        kept = recorded.files / name
        file = Path(code.rpartition(":")[0])
        if ":" not in code or (kept.exists() and _unchanged(file, kept)):
            continue
        then = f"recorded as {kept}" if kept.exists() else "not recorded"
        differences.append(Difference(what, then, f"{file} differs" if kept.exists() else f"{file} as it is"))
    return differences


def _order(recorded: Recorded) -> list[Difference]:
    """Causes of another outcome of a sweep with the same seed."""
    if not isinstance(recorded.spec, SweepSpec):
        return []
    search = recorded.spec.search
    differences = []
    local = recorded.environment.get("options", {}).get("local")
    if not local and search.concurrency != 1 and search.sampler not in ("random", "grid"):
        order = "in the order in which trials ended"
        differences.append(Difference("what the sampler knew at each suggestion", order, "perhaps in another order"))
    if search.time_budget or search.max_device_hours:
        number = "as many as the time allowed"
        differences.append(Difference("trials within the budget", number, "perhaps another number"))
    return differences
