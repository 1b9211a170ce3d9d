"""Checks before a worker starts. This module does not import PyTorch, Ray or MLflow."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from orchestrator.cluster import mlflow_login, redirects, tracking_database
from orchestrator.cluster.connection import authenticate, check_fit, check_is_ray, check_reachable, slots, this_machine
from orchestrator.config import objectives, user_code, workload_loader
from orchestrator.config.parsing import as_json, validate
from orchestrator.config.plan import Plan
from orchestrator.config.spec import Resources
from orchestrator.errors import UNAVAILABLE, USAGE, UserError, restore_experiment
from orchestrator.storage.disk import check_writable
from orchestrator.storage.settings import Settings, sqlite_file
from workloads.data import ReadOptions, check_readable, datasets, stores
from workloads.data.digests import digest
from workloads.data.errors import CacheUnwritable, DataError, DataUnreachable
from workloads.memory import free_bytes

SERVER_SECONDS = 5.0  # for an answer of the tracking server


def parameters(name: str, values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Complete, checked parameters of a workload as plain JSON values."""
    model = workload_loader.params(name)
    complete = as_json(validate(model, values, "parameter", places))
    validate(model, complete, "parameter", places)  # defaults too: training builds the parameters from all values
    return complete


def fingerprint(workload: str, params: Mapping[str, Any], root: Path) -> str | None:
    """Fingerprint of the parameters' dataset, which is checked: it is present, intact, of a kind the workload reads.

    Returns None for a workload that reads none of the package's datasets. Raises UserError.
    """
    name = params.get("dataset")
    kinds = workload_loader.entry(workload).data
    if name is None or not kinds:
        return None
    with _as_user_errors(DataError):
        datasets.check_kind(name, *kinds)
        datasets.check(name, root)
        datasets.check_kind(name, *kinds)  # that of a dataset in an object store is known now
        return datasets.fingerprint(name, root)


def dataset(workload: str, params: Mapping[str, Any], root: Path, *, elsewhere: bool = False) -> str | None:
    """Check also that the dataset can be read with these parameters. Returns its :func:`fingerprint`.

    ``elsewhere``: training is on other nodes, so that those read a dataset whose reading is slow, and report what is
    wrong with it when the first trial starts there (:func:`orchestrator.runs.start_point.check_data`).
    """
    content = fingerprint(workload, params, root)
    if content is None or not is_read_here(params, root, elsewhere=elsewhere):
        return content
    options = {name: params.get(f"dataset_{name}") for name in ("size", "corrupt", "unknown", "noise", "min_rating")}
    with _as_user_errors(DataError):
        check_readable(params["dataset"], root, ReadOptions(split=params.get("split"), **options))
    return content


def data(
    name: str, params: Mapping[str, Any], root: Path, refit: bool | str | None = None, *, elsewhere: bool = False
) -> None:
    """Check that these parameters can be trained on the dataset (``check_data`` in the contract). Raises UserError.

    With ``refit="only"`` no part is held out. ``elsewhere``: as for :func:`dataset`.
    """
    model = workload_loader.params(name)
    if hasattr(model, "check_data") and is_read_here(params, root, elsewhere=elsewhere):
        with _as_user_errors():
            model.model_validate(dict(params)).check_data(root, holdout=refit != "only")


def is_read_here(params: Mapping[str, Any], root: Path, *, elsewhere: bool) -> bool:
    """Whether the driver reads the dataset: not if reading it may take long and training is ``elsewhere``."""
    name = params.get("dataset")
    try:
        return name is None or not (elsewhere and datasets.is_slow(name, root))
    except (ValueError, KeyError):  # none of the package's datasets
        return True


def memory(name: str, params: Mapping[str, Any], root: Path) -> None:
    """Check that these parameters fit into this machine's free memory (``check_memory`` in the contract).

    Raises UserError.
    """
    model = workload_loader.params(name)
    if hasattr(model, "check_memory"):
        with _as_user_errors():
            model.model_validate(dict(params)).check_memory(root, free_bytes())


def input_files(name: str, params: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the files that training reads in addition to the dataset, by parameter (``input_files``).

    Raises UserError for one that cannot be read.
    """
    model = workload_loader.params(name)
    if not hasattr(model, "input_files"):
        return {}
    digests = {}
    for parameter, file in model.input_files(params).items():
        try:
            with _as_user_errors(DataError):
                stores.stage(file)  # the copy of what is in an object store
            digests[parameter] = digest(file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"{parameter}={file} cannot be read: {reason}", fix="Name another file") from None
    return digests


def batch(params: Mapping[str, Any], resources: Resources, plan: Plan, *, resuming: bool = False) -> None:
    """Raise UserError unless ``batch_size`` can be split into equal micro-batches for every allowed number of workers.

    With ``resuming`` the message suggests other workers, since the batch size is recorded.
    """
    workers = range(resources.fewest_workers, resources.workers + 1)
    size = params.get("batch_size")
    accumulate = 1 if plan.accumulate == "auto" else plan.accumulate
    parts = math.lcm(*workers) * accumulate
    if not isinstance(size, int) or size % parts == 0:
        return
    near = [n for n in (size - size % parts, size + parts - size % parts) if n > 0]
    best = min(near, key=lambda n: abs(n - size))
    dividing = next((n for n in reversed(workers) if size % (n * accumulate) == 0), 1)
    raise UserError(
        f"batch_size is the global batch and {' to '.join(dict.fromkeys(map(str, (workers[0], workers[-1]))))} "
        f"worker(s) x accumulate={plan.accumulate} do not divide it",
        got=size,
        allowed=None if resuming else f"a multiple of {parts}",
        fix=f"Use --workers {dividing}" if resuming else f"Use batch_size={best}",
    )


def limits(workload: str, params: Mapping[str, Any], resources: Resources, plan: Plan) -> None:
    """Check that nothing is requested that the workload or these parameters rule out (``Limited`` in the contract).

    Raises UserError.
    """
    code = workload_loader.code(workload)
    if plan.log_every and not hasattr(code, "take_steps"):
        raise UserError(
            f"The workload {workload} reports no values within an epoch", got=f"log_every={plan.log_every}",
            fix="Leave it out (see workloads.contract.StepLogged)",
        )  # fmt: skip
    model = workload_loader.params(workload)
    of_params = model.model_validate(dict(params)).limits if hasattr(model, "limits") else {}
    declared = {**getattr(code, "limits", {}), **of_params}
    requested = {
        "log_every": plan.log_every > 0,
        "workers": resources.workers > 1,
        "accumulate": plan.accumulate != 1,
        "steps_per_epoch": plan.steps_per_epoch is not None,
        "refit": bool(plan.refit),
        "patience": plan.patience > 0,
    }
    for name in declared.keys() & {name for name, is_requested in requested.items() if is_requested}:
        value = resources.workers if name == "workers" else getattr(plan, name)
        raise UserError(
            f"This workload cannot do what is requested: {declared[name]}", got=f"{name}={str(value).lower()}",
            fix="Leave it out",
        )  # fmt: skip


def schedule(name: str, params: Mapping[str, Any], plan: Plan, refit: bool) -> None:
    """Let the workload check number of epochs, refit and objectives (``check_plan``, ``check_objectives``).

    Raises UserError.
    """
    model = workload_loader.params(name)
    with _as_user_errors():
        if hasattr(model, "check_plan"):
            model.model_validate(dict(params)).check_plan(plan.epochs, refit)
        if plan.refit != "only" and hasattr(model, "check_objectives"):  # otherwise validation is not evaluated
            model.model_validate(dict(params)).check_objectives([one.metric for one in objectives.of_plan(name, plan)])


def abstention(name: str, plan: Plan) -> None:
    """Check that the workload can hold out the plan's ``abstention_part`` from all training. Raises UserError."""
    if plan.abstention_part and not getattr(workload_loader.params(name), "abstains", False):
        raise UserError(
            f"The workload {name} does not abstain, so it holds out no queries",
            got=f"abstention_part={plan.abstention_part:g}", fix="Leave it out",
        )  # fmt: skip
    if plan.abstention_part and plan.init:
        raise UserError(
            "Queries are held out of all training, and the weights of another model may have learned from them",
            got=f"abstention_part={plan.abstention_part:g} with init={plan.init}", fix="Leave out one of them",
        )  # fmt: skip


def micro_batches(name: str, params: Mapping[str, Any], plan: Plan) -> str | None:
    """Check that ``accumulate=auto`` does not change these parameters' result (``check_accumulate`` in the contract).

    Returns what to print of it, if anything. Raises UserError.
    """
    model = workload_loader.params(name)
    if plan.accumulate != "auto" or not hasattr(model, "check_accumulate"):
        return None
    with _as_user_errors():
        note: str | None = model.model_validate(dict(params)).check_accumulate()
        return note


@contextmanager
def _as_user_errors(refusal: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn the refusals of workloads and datasets into UserError."""
    try:
        yield
    except refusal as error:
        code = UNAVAILABLE if isinstance(error, CacheUnwritable | DataUnreachable) else USAGE
        raise UserError(str(error), code=code) from None


def services(
    settings: Settings, resources: Resources, *, ray: bool, workload: str | None = None, register: str | None = None
) -> None:
    """Check that the storage is writable, tracking and cluster are reachable, and this machine is large enough.

    A model to be registered needs tracking. With a ``workload``, also check its predictor, which such a model needs,
    and that this user may write to its experiment in MLflow.
    """
    if workload is not None and not workload_loader.can_serve(workload) and register:
        raise UserError(
            "A model of this workload cannot be registered: it has no class Predictor", got=workload,
            fix="Add one, or leave out --register",
        )  # fmt: skip
    if register and settings.tracking is None:
        raise UserError(
            "A model cannot be registered with tracking off", got=f"--register {register}",
            fix="Leave out --register, or name a store with --tracking",
        )  # fmt: skip
    check_writable(settings.storage)
    tracking(settings)
    if workload is not None:
        _check_experiment(settings, settings.experiment or user_code.label(workload))
    if ray and settings.ray_address:
        cluster_gpus(settings.ray_address)
    else:
        check_fit(this_machine(), resources, here=True)


def available_resources(wanted: Resources, settings: Settings, *, local: bool) -> Resources:
    """The ``wanted`` resources, reduced to what this machine has. Those of a cluster are checked when it starts."""
    if settings.ray_address and not local:
        return wanted
    here = this_machine()
    if slots(here, wanted) >= 1 and not (local and wanted.workers > 1):
        return wanted
    gpus = min(wanted.gpus_per_worker, int(here[0]["GPU"]))
    cpus = min(wanted.cpus_per_worker, here[0]["CPU"])
    return Resources(workers=1, gpus_per_worker=gpus, cpus_per_worker=cpus, max_gpus=wanted.max_gpus if gpus else None)


def resumed_resources(
    record: Mapping[str, Any], recorded: Resources, given: Mapping[str, Any], settings: Settings,
    say: Callable[[str], None], *, local: bool,
) -> Resources:  # fmt: skip
    """The ``recorded`` resources of a run or sweep with those ``given`` to its resume, reported by ``say``.

    On this machine a worker has at most its share of the CPUs, unless their number is given. GPUs and workers are
    never reduced unasked. Raises UserError (exit 3) if the run used a cluster, as ``record`` says, none is named now,
    and this machine is too small.
    """
    given = {name: value for name, value in given.items() if value is not None}
    values = recorded.model_dump(exclude_none=True)
    if "workers" in given:
        values.pop("min_workers", None)
    wanted = validate(Resources, {**values, **given}, "resource")
    if "max_gpus" in given:
        wanted.report_unused_limit(say)
    if local and wanted.workers > 1 and "workers" in given:
        raise UserError("A local run trains in one process", got=f"workers={wanted.workers}", fix="Leave --workers out")
    if local or not settings.ray_address:
        here = this_machine()
        share = here[0]["CPU"] / wanted.fewest_workers
        if slots(here, wanted) < 1 and "cpus_per_worker" not in given and wanted.cpus_per_worker > share:
            less = wanted.model_copy(update={"cpus_per_worker": int(share) or share})
            wanted = less if slots(here, less) >= 1 and not record["spec"].get("cluster") else wanted
        if slots(here, wanted) < 1 and record["spec"].get("cluster") and not given:
            raise UserError(
                "It ran on a Ray cluster, and this machine is too small", got=wanted.text(),
                fix="Name the cluster with --ray-address, or what to use here with "
                f"{'--workers, ' * (record['kind'] == 'run')}--gpus-per-worker and --cpus-per-worker", code=UNAVAILABLE,
            )  # fmt: skip
    if wanted != recorded:
        say(f"Recorded on {recorded.text()}; continued on {wanted.text()}")
    return wanted


def cluster_gpus(address: str) -> float | None:
    """Number of GPUs of the cluster at ``address``, None if that is not known.

    Raises UserError (exit 3) within seconds without an answer.
    """
    authenticate()
    check_reachable(address)
    return check_is_ray(address)


def uses_gpu(workload: str, params: Mapping[str, Any]) -> bool:
    """Whether these parameters can be trained on a GPU (``uses_gpu`` in the contract)."""
    model = workload_loader.params(workload)
    return bool(model.model_validate(dict(params)).uses_gpu()) if hasattr(model, "uses_gpu") else True


def tracking(settings: Settings) -> None:
    """Check that the tracking address answers within seconds. Raises UserError (exit 3)."""
    uri = settings.tracking
    if uri is None:
        return
    if file := sqlite_file(uri):
        check_writable(file.parent, "tracking")
    elif uri.startswith("http"):
        _ask_server(uri.rstrip("/"))
    else:
        tracking_database.check(uri)


def server_version(address: str) -> str:
    """Version of MLflow's server. Raises OSError."""
    uri, credentials = mlflow_login.credentials(address.rstrip("/"))
    return _answer(f"{uri}/version", None, credentials)[:100].decode(errors="replace").strip()


def _check_experiment(settings: Settings, experiment: str) -> None:
    """Check that an experiment on a server is not deleted and, with passwords, that this user may write to it.

    That is tried by setting a tag: reading one's own rights would need more rights. Raises UserError (exit 3). A new
    experiment belongs to the user who creates it.
    """
    if settings.tracking is None or not settings.tracking.startswith("http"):
        return
    uri, credentials = mlflow_login.credentials(settings.tracking.rstrip("/"))
    user = mlflow_login.user()
    named = f"{uri}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': experiment})}"
    with suppress(OSError, ValueError, KeyError):  # other errors appear when the run is opened
        try:
            existing = json.loads(_answer(named, None, credentials))["experiment"]
            if existing.get("lifecycle_stage") == "deleted":
                raise UserError(
                    f"The experiment {experiment!r} of MLflow at {uri} was deleted", code=UNAVAILABLE,
                    fix=f"{restore_experiment(existing['experiment_id'])}, or name another with MLFLOW_EXPERIMENT_NAME",
                )  # fmt: skip
            if not credentials:
                return
            tag = {"experiment_id": existing["experiment_id"], "key": "orchestrator", "value": "true"}
            _answer(f"{uri}/api/2.0/mlflow/experiments/set-experiment-tag", json.dumps(tag).encode(), credentials)
        except urllib.error.HTTPError as error:
            if error.code == 403:
                raise UserError(
                    f"{user} may not write to the experiment {experiment!r} of MLflow at {uri}", code=UNAVAILABLE,
                    fix="Name one of your own with MLFLOW_EXPERIMENT_NAME, or have the administrator grant EDIT on it",
                ) from None  # fmt: skip


def _answer(url: str, data: bytes | None, credentials: Mapping[str, str]) -> bytes:
    """Answer of an API path of MLflow, to a POST if there is ``data``. Raises OSError."""
    headers = {"Content-Type": "application/json", **credentials}
    request = urllib.request.Request(url, data=data, headers=headers)
    return redirects.read(request, SERVER_SECONDS, mlflow_login.encryption())


def _ask_server(address: str) -> None:
    uri = address
    try:
        uri, credentials = mlflow_login.credentials(address)
        # An API path: /health answers 200 even where the host check refuses every client.
        _answer(f"{uri}/api/2.0/mlflow/experiments/search", b'{"max_results": 1}', credentials)
    except urllib.error.HTTPError as error:
        body = error.read(200).decode(errors="replace").strip()
        hint = {
            401: "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            403: "Name this host in the server's --allowed-hosts, or check the rights of the user",
        }.get(error.code, "Check the address and the server's log")
        raise UserError(f"MLflow at {uri} refuses: HTTP {error.code} {body}", fix=hint, code=UNAVAILABLE) from None
    except redirects.RedirectRefused as error:
        raise UserError(
            f"MLflow at {uri} redirects to {error.target}, and a login is sent to no other one", code=UNAVAILABLE,
            fix="If that is the server, name it with MLFLOW_TRACKING_URI or --tracking",
        ) from None  # fmt: skip
    except (OSError, ValueError, http.client.HTTPException) as error:  # no answer, no address, or not HTTP
        reason = str(getattr(error, "reason", error)).strip() or type(error).__name__
        raise UserError(
            f"No MLflow answers at {uri} ({reason})", code=UNAVAILABLE,
            fix="Start the server, correct MLFLOW_TRACKING_URI or --tracking, or unset it for the embedded store",
        ) from None  # fmt: skip
