"""The few MLflow calls that the writer needs, each one request where MLflow allows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import one_line
from orchestrator.tracking import store
from orchestrator.tracking.names import fitting, fitting_param, fitting_tag

End = Literal["FINISHED", "FAILED", "KILLED"]

KEY, OWNER = "orchestrator.key", "orchestrator.id"
"""Tags by which a run is found again: our own key of it, and the run or sweep it belongs to."""

PAGE = 500
"""Runs that one search request brings."""


class Refused(Exception):
    """The server answered and said no: sending again would not help."""


@dataclass(frozen=True, slots=True)
class Known:
    """A run that an earlier process opened: its id, and the last step of each of its metrics."""

    run_id: str
    steps: Mapping[str, int]


def all_runs(search: Callable[..., Any], experiments: Sequence[str], query: str) -> Iterator[Any]:
    """The runs of some experiments that a query finds, the earliest first, in as many pages as they need.

    ``search`` is :meth:`MlflowClient.search_runs`, or calls it.
    """
    token = None
    while experiments:
        page = search(experiments, query, max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token)
        yield from page
        if not (token := page.token):
            return


class Client:
    """An experiment of an MLflow store, made if it is not there. Raises Refused, or whatever an outage looks like."""

    def __init__(self, uri: str, experiment: str, artifacts: Path | None) -> None:
        store.quiet()
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from requests import RequestException

        self._metric, self._param, self._tag, self._refusal = Metric, Param, RunTag, MlflowException
        self._dataset, self._input, self._input_tag = Dataset, DatasetInput, InputTag
        self._outage = RequestException
        self._client = MlflowClient(uri, uri)
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            location = str(artifacts / fitting(experiment)) if artifacts else None
            try:
                self.experiment = self._client.create_experiment(
                    experiment, artifact_location=location, tags={"mlflow.experimentKind": "custom_model_development"}
                )
            except MlflowException:  # another process was first
                self.experiment = self._client.get_experiment_by_name(experiment).experiment_id
        else:
            self.experiment = found.experiment_id

    def known(self, owner: str) -> Iterator[tuple[str, Known]]:
        """All runs of ``owner`` by key."""
        search = partial(self._call, self._client.search_runs)
        for run in all_runs(search, [self.experiment], f"tags.`{OWNER}` = '{owner}'"):
            steps = {metric.key: int(metric.step) for metric in run.data.to_proto().metrics}
            yield run.data.tags[KEY], Known(str(run.info.run_id), steps)

    def find(self, owner: str, key: str) -> str | None:
        query = f"tags.`{OWNER}` = '{owner}' and tags.`{KEY}` = '{key}'"
        runs = self._call(self._client.search_runs, [self.experiment], query, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def create(self, name: str, tags: Mapping[str, str], parent: str | None, moment: int) -> str:
        tags = {key: fitting_tag(value) for key, value in tags.items()}
        if parent:
            tags["mlflow.parentRunId"] = parent
        run = self._call(self._client.create_run, self.experiment, start_time=moment, tags=tags, run_name=name)
        return str(run.info.run_id)

    def reopen(self, run: str) -> None:
        self._call(self._client.update_run, run, status="RUNNING")

    def params(self, run: str, params: list[tuple[str, str]]) -> None:
        packed = [self._param(key, fitting_param(value)) for key, value in params]
        self._call(self._client.log_batch, run, params=packed)

    def metrics(self, run: str, values: list[tuple[str, float, int, int]]) -> None:
        self._call(self._client.log_batch, run, metrics=[self._metric(*value) for value in values])

    def tags(self, run: str, tags: list[tuple[str, str]]) -> None:
        self._call(self._client.log_batch, run, tags=[self._tag(key, fitting_tag(value)) for key, value in tags])

    def end(self, run: str, status: End, moment: int) -> None:
        self._call(self._client.set_terminated, run, status=status, end_time=moment)

    def input(self, run: str, dataset: Mapping[str, str]) -> None:
        """Say which data the run was trained on: ``name``, ``digest`` (36 long at most), ``source``, ``profile``."""
        known = self._dataset(source_type="local", **dataset)
        context = self._input_tag("mlflow.data.context", "training")
        self._call(self._client.log_inputs, run, datasets=[self._input(known, [context])])

    def files(self, run: str, paths: Iterable[str]) -> None:
        """Artifacts; Refused too where their store, unlike the server, cannot be had from here."""
        for path in filter(os.path.exists, paths):
            try:
                self._call(self._client.log_artifact, run, path)
            except (Refused, self._refusal, self._outage):
                raise
            except Exception as error:  # rights, an object store's keys: metrics must not wait for those
                raise Refused(
                    f"{Path(path).name} is not on the run: {type(error).__name__}: {one_line(error)}"
                ) from None

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except self._refusal as error:
            if error.get_http_status_code() in (400, 404, 409):
                raise Refused(one_line(error)) from None
            raise
