"""The few MLflow calls that the writer needs, each one request where MLflow allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from orchestrator import store

End = Literal["FINISHED", "FAILED", "KILLED"]

KEY, OWNER = "orchestrator.key", "orchestrator.id"
"""Tags by which a run is found again: our own key of it, and the run or sweep it belongs to."""

MAX_PARAM = 6000  # MLflow truncates beyond; the whole value is in the spec artifact


class Refused(Exception):
    """The server answered and said no: sending again would not help."""


class Client:
    """An experiment of an MLflow store, made if it is not there. Raises Refused, or whatever an outage looks like."""

    def __init__(self, uri: str, experiment: str, artifacts: Path | None) -> None:
        store.quiet()
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._param, self._tag, self._refusal = Metric, Param, RunTag, MlflowException
        self._client = MlflowClient(uri, uri)
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            location = str(artifacts / experiment) if artifacts else None
            try:
                self.experiment = self._client.create_experiment(
                    experiment, artifact_location=location, tags={"mlflow.experimentKind": "custom_model_development"}
                )
            except MlflowException:  # another process was first
                self.experiment = self._client.get_experiment_by_name(experiment).experiment_id
        else:
            self.experiment = found.experiment_id

    def find(self, owner: str, key: str) -> str | None:
        query = f"tags.`{OWNER}` = '{owner}' and tags.`{KEY}` = '{key}'"
        runs = self._call(self._client.search_runs, [self.experiment], query, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def create(self, name: str, tags: Mapping[str, str], parent: str | None, moment: int) -> str:
        tags = {**tags, "mlflow.parentRunId": parent} if parent else tags
        run = self._call(self._client.create_run, self.experiment, start_time=moment, tags=tags, run_name=name)
        return str(run.info.run_id)

    def reopen(self, run: str) -> None:
        self._call(self._client.update_run, run, status="RUNNING")

    def params(self, run: str, params: list[tuple[str, str]]) -> None:
        packed = [self._param(key, value[:MAX_PARAM]) for key, value in params]
        self._call(self._client.log_batch, run, params=packed)

    def metrics(self, run: str, values: list[tuple[str, float, int, int]]) -> None:
        self._call(self._client.log_batch, run, metrics=[self._metric(*value) for value in values])

    def tags(self, run: str, tags: list[tuple[str, str]]) -> None:
        self._call(self._client.log_batch, run, tags=[self._tag(key, value) for key, value in tags])

    def end(self, run: str, status: End, moment: int) -> None:
        self._call(self._client.set_terminated, run, status=status, end_time=moment)

    def last_steps(self, run: str) -> dict[str, int]:
        names = self._client.get_run(run).data.metrics
        return {name: max(m.step for m in self._client.get_metric_history(run, name)) for name in names}

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except self._refusal as error:
            if error.get_http_status_code() in (400, 404, 409):
                raise Refused(str(error).splitlines()[0]) from None
            raise
