"""A sweep on the real topology: submitted as a job, trained on both nodes, its result stored in MLflow."""

from __future__ import annotations

import time

from tests.cluster.topology import STARTING_SECONDS, User
from tests.support.commands import SPACES, trials

SEARCH = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none"]


def test_a_sweep_over_both_nodes_is_tracked_and_registered(user: User) -> None:
    count, epochs, started = 8, 10, time.time()
    words = [*SEARCH, "--trials", str(count), "--cpus-per-worker", "1", f"epochs={epochs}", "slow=0.4"]
    job = user.submit(*words, "--register", "wide")
    job.until(lambda: all(node.processes("Trainable.train") for node in user.topology.nodes), STARTING_SECONDS)
    assert job.end() == 0, job.text()
    assert [row["state"] for row in trials(user.home)] == ["complete"] * count
    user.store.check()

    client = user.mlflow()
    experiment = client.get_experiment_by_name(user.experiment)
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if run.data.tags["orchestrator.kind"] == "sweep")
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == count == len(runs) - 1
    assert all(len(client.get_metric_history(run.info.run_id, "train/loss")) == epochs for run in children)
    assert {"report.html", "trials.csv", "best.json"} <= {
        file.path for file in client.list_artifacts(parent.info.run_id)
    }
    (version,) = client.search_model_versions("name = 'wide'")
    assert version.run_id == parent.info.run_id
    assert (user.topology.mlflow.artifacts / experiment.experiment_id).is_dir(), "artifacts go through the server"

    promote = user.start("promote", "wide", "--to", "champion")
    assert promote.end() == 0, promote.text()
    assert client.get_model_version_by_alias("wide", "champion").version == version.version
    print(f"\na submitted sweep of {count} trials, four at once on two nodes: {time.time() - started:.0f} s")
