"""The MLflow calls that the sender needs, each a single request where MLflow allows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import one_line, restore_experiment
from orchestrator.tracking import artifact_stores, store
from orchestrator.tracking.names import encodable, fitting, fitting_param, fitting_tag

End = Literal["FINISHED", "FAILED", "KILLED"]

KEY, OWNER = "orchestrator.key", "orchestrator.id"
"""Tags that identify a run: its key, and the run or sweep that it belongs to."""

RECORD = "orchestrator.record"
"""Tag with the ``uid`` of the record: runs of several storages may have the same name. Earlier versions set none."""

KIND, MODEL_DEVELOPMENT = "mlflow.experimentKind", "custom_model_development"
"""Tag of an experiment: its kind in MLflow's UI, and the value for training runs."""

PAGE = 100
"""Runs a search request returns at most."""


GATEWAY = ("BAD_REQUEST", "ENDPOINT_NOT_FOUND", "ALREADY_EXISTS")
"""Codes that MLflow's client gives to answers of 400, 404 and 409 that are not MLflow's own, such as a gateway's."""


class Refused(Exception):
    """The server rejected the request: sending it again would not help."""


class Doubtful(Refused):
    """The server rejected the request, or its database had an error that passes: MLflow has one code for both."""


class DeletedExperiment(OSError):
    """The experiment was deleted. It can be restored, hence an outage: what was to be sent is kept."""


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """A run that an earlier process opened: its id, and the last step of each of its metrics."""

    run_id: str
    steps: Mapping[str, int]


def all_pages(search: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """All results of a search method of MlflowClient, which is called once a page with a ``page_token``."""
    token = None
    while True:
        page = search(*arguments, **options, page_token=token)
        yield from page
        if not (token := page.token):
            return


def all_runs(search: Callable[..., Any], experiments: Sequence[str], query: str) -> Iterator[Any]:
    """All runs of some experiments that match a query, earliest first.

    ``search`` is :meth:`MlflowClient.search_runs` or a wrapper of it.
    """
    if experiments:
        order = ["attributes.start_time ASC"]
        yield from all_pages(search, experiments, query, max_results=PAGE, order_by=order)


class Client:
    """Client of one MLflow experiment, which is created if it does not exist.

    With ``uid``, it is the experiment that has the runs of this record, whatever its name is now.

    Methods raise Refused when the server rejects a request, and MLflow's exceptions or OSError during an outage.
    """

    def __init__(self, uri: str, experiment: str, artifacts: Path | None, uid: str | None = None) -> None:
        store.quiet()
        from mlflow import entities
        from mlflow.exceptions import MlflowException, RestException
        from mlflow.tracking import MlflowClient

        self._entities = entities
        self._refusal = MlflowException
        self._answer = RestException if uri.startswith("http") else MlflowException
        self._client = MlflowClient(uri, uri)
        experiment = encodable(experiment)
        if uid and (current := self._experiment_of(uid)):
            self.experiment = current
            return
        existing = self._client.get_experiment_by_name(experiment)
        if existing is None:
            location = str(artifacts / fitting(experiment)) if artifacts else None
            try:
                self.experiment = self._client.create_experiment(
                    experiment, artifact_location=location, tags={KIND: MODEL_DEVELOPMENT}
                )
            except MlflowException:
                existing = self._client.get_experiment_by_name(experiment)
                if existing is None:  # else another process created it first
                    raise
                self.experiment = existing.experiment_id
        else:
            _check_active(existing)
            self.experiment = existing.experiment_id
            if KIND not in existing.tags:
                with suppress(MlflowException):  # only MLflow's UI reads it
                    self._client.set_experiment_tag(self.experiment, KIND, MODEL_DEVELOPMENT)

    def _experiment_of(self, uid: str) -> str | None:
        """The experiment with the runs of a record: it may have been renamed. None if there is none."""
        every = [one.experiment_id for one in all_pages(self._client.search_experiments)]
        runs = self._client.search_runs(every, f"tags.`{RECORD}` = '{uid}'", max_results=1) if every else ()
        return str(runs[0].info.experiment_id) if runs else None

    def existing_runs(self, owner: str, uid: str | None = None) -> Iterator[tuple[str, ExistingRun]]:
        """All runs of ``owner`` with the record ``uid``, as pairs of key and run."""
        search = partial(self._call, self._client.search_runs)
        for run in all_runs(search, [self.experiment], f"tags.`{OWNER}` = '{owner}'"):
            if KEY not in run.data.tags or run.data.tags.get(RECORD, uid) != uid:  # removed by hand; another's
                continue
            steps = {metric.key: int(metric.step) for metric in run.data.to_proto().metrics}
            yield run.data.tags[KEY], ExistingRun(str(run.info.run_id), steps)

    def find(self, owner: str, key: str, uid: str | None = None) -> str | None:
        query = f"tags.`{OWNER}` = '{owner}' and tags.`{KEY}` = '{key}'"
        query += f" and tags.`{RECORD}` = '{uid}'" if uid else ""
        runs = self._call(self._client.search_runs, [self.experiment], query, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def create(self, name: str, tags: Mapping[str, str], parent: str | None, moment: int) -> str:
        tags = {key: fitting_tag(value) for key, value in tags.items()}
        if parent:
            tags["mlflow.parentRunId"] = parent
        run = self._call(
            self._client.create_run, self.experiment, start_time=moment, tags=tags, run_name=encodable(name)
        )
        return str(run.info.run_id)

    def reopen(self, run: str) -> None:
        self._call(self._client.update_run, run, status="RUNNING")

    def log(
        self,
        run: str,
        params: Sequence[tuple[str, str]] = (),
        metrics: Sequence[tuple[str, float, int, int]] = (),
        tags: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Log values of all kinds, in one request where MLflow takes so many."""
        self._call(
            self._client.log_batch,
            run,
            metrics=[self._entities.Metric(*value) for value in metrics],
            params=[self._entities.Param(key, fitting_param(value)) for key, value in params],
            tags=[self._entities.RunTag(key, fitting_tag(value)) for key, value in tags],
        )

    def end(self, run: str, status: End, moment: int) -> None:
        self._call(self._client.set_terminated, run, status=status, end_time=moment)

    def input(self, run: str, dataset: Mapping[str, str]) -> None:
        """Log the training dataset: ``name``, ``digest`` (at most 36 characters), ``source``, ``profile``."""
        texts = {key: encodable(text) for key, text in dataset.items()}
        entity = self._entities.Dataset(source_type="local", **texts)
        context = self._entities.InputTag("mlflow.data.context", "training")
        self._call(self._client.log_inputs, run, datasets=[self._entities.DatasetInput(entity, [context])])

    def files(self, run: str, paths: Iterable[str]) -> None:
        """Log the files that exist as artifacts. Raises Refused also for a store without permissions or credentials."""
        for path in filter(os.path.exists, paths):
            try:
                self._call(self._client.log_artifact, run, path)
            except (Refused, self._refusal):
                raise
            except Exception as error:
                if artifact_stores.may_pass(error):
                    raise
                raise Refused(
                    f"{Path(path).name} is not on the run: {type(error).__name__}: {one_line(error)}"
                ) from None

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except UnicodeEncodeError as error:
            raise Refused(one_line(error)) from None
        except self._refusal as error:
            if isinstance(error.__context__, UnicodeEncodeError):  # of a database; MLflow's code is that of an outage
                raise Refused(one_line(error)) from None
            is_gateways = not isinstance(error, self._answer)
            if is_gateways and "failed with error code 413 " in error.message:  # MLflow has no code for it
                raise Refused(one_line(error)) from None
            if (is_gateways and error.error_code in GATEWAY) or error.get_http_status_code() not in (400, 404, 409):
                raise
            if "active' state" in error.message:  # the run's, or its experiment's
                _check_active(self._client.get_experiment(self.experiment))
            kind = Doubtful if error.error_code == "BAD_REQUEST" else Refused
            raise kind(one_line(error)) from None


def _check_active(experiment: Any) -> None:
    if experiment.lifecycle_stage == "deleted":
        fix = restore_experiment(experiment.experiment_id)
        raise DeletedExperiment(f"the experiment {experiment.name!r} was deleted. {fix}")
