"""The only module that uses what Ray does not document. Each use says why, and what happens without it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray._private.state import GlobalState, available_resources_per_node, state
from ray._raylet import GcsClient, GcsClientOptions  # type: ignore[attr-defined]
from ray.experimental import internal_kv

# kv_*: where drivers that share a cluster leave their claims. Without it each cluster needs one process more.
# canonicalize_bootstrap_address: what `auto` means. Without it a cluster on this machine must be named.
# available_resources_per_node: whether a worker of an elastic run fits; the public sum over nodes cannot say.
__all__ = ["available_resources_per_node", "canonicalize_bootstrap_address", "kv_delete", "kv_get", "kv_list", "kv_put"]

kv_delete, kv_get = internal_kv._internal_kv_del, internal_kv._internal_kv_get
kv_list, kv_put = internal_kv._internal_kv_list, internal_kv._internal_kv_put


def draining_nodes() -> set[str]:
    """The nodes that are being taken away. Ray's public call for it answers only workers of Ray Train."""
    return set(state.get_draining_nodes())


def nodes_of_job() -> set[str]:
    """Nodes with actors of this driver that train. Without it all are sampled: the public call needs the dashboard."""
    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    actors = state.actor_table(None, job, "ALIVE").values()
    return {actor["Address"]["NodeID"] for actor in actors if actor["ActorClassName"] not in ("Monitors", "_Holder")}


def print_metadata(address: str) -> None:
    """Print versions and GPUs of the cluster at ``address`` as JSON. Without it a wrong port or token costs 40 s."""
    from ray._common.usage.usage_lib import get_cluster_metadata

    signal.alarm(3)  # the client retries for 40 s in C++, where Python's signals are not handled
    if resolved := canonicalize_bootstrap_address(address):
        metadata = get_cluster_metadata(GcsClient(address=resolved))  # first: it tells a wrong token from a wrong port
        cluster = GlobalState()
        cluster._initialize_global_state(GcsClientOptions.create(resolved, None, True, False))
        gpus = sum(node.get("GPU", 0) for node in cluster.total_resources_per_node().values())
        print(json.dumps({**metadata, "gpus": gpus}))


def torch_trainer() -> type:
    """``TorchTrainer`` without its cleaner, of which a process stays for each controller that was killed."""
    from ray.train.torch import TorchTrainer

    class Trainer(TorchTrainer):  # type: ignore[misc]
        def _create_default_callbacks(self) -> list[Any]:
            usual = super()._create_default_callbacks()
            return [each for each in usual if type(each).__name__ != "PlacementGroupCleanerCallback"]

    return Trainer


@contextmanager
def deaths_are_retried(death: type[Exception]) -> Iterator[None]:
    """Within it Tune retries any death of a process. Without it one killed by Ray's memory monitor ends the sweep."""
    from ray.air.execution._internal import RayActorManager
    from ray.exceptions import RayActorError, RayError, RayTaskError
    from ray.tune.execution import tune_controller

    class Manager(RayActorManager):  # type: ignore[misc]
        def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
            retried = isinstance(exception, RayActorError | RayTaskError) or not isinstance(exception, RayError)
            super()._actor_task_failed(tracked_actor_task, exception if retried else death(str(exception)))

    usual = tune_controller.RayActorManager
    tune_controller.RayActorManager = Manager
    try:
        yield
    finally:
        tune_controller.RayActorManager = usual
