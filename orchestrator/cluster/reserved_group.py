"""A Ray Train group inside resources that somebody reserved for it: it waits for none and leaves none behind.

Train's own trainer reserves its workers' resources from inside, when it has started. A trial then waits for what
other trials hold while it holds something itself; and what a stopped trial had reserved is given back by a detached
actor that asks the dashboard, if there is one. Here the owner reserves the whole group at once, in one placement
group (Tune for a trial, the driver for a run), and workers start nowhere else: who waits holds nothing, and when
the owner removes its placement group all that is in it dies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.util.placement_group import PlacementGroup

from orchestrator.config.spec import Resources

POLL_SECONDS = 0.5
"""How often the controller takes its workers' reports; Train's own two seconds would delay every decision."""


def bundle(resources: Resources) -> dict[str, float]:
    """What one worker needs, in Ray's names."""
    need = {"CPU": resources.cpus_per_worker}
    return need | {"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else need


@dataclass(kw_only=True)
class Place(ScalingConfig):  # type: ignore[misc]
    """A scaling configuration whose workers go into ``group``, the first into its first bundle."""

    group: PlacementGroup


class Group:
    """A started group: watched by whoever started it."""

    error = None  # Train's fit() asks for it: what fails later is in result()

    def __init__(self, controller: ActorHandle) -> None:
        self._controller = controller
        self._run = controller.run.remote()

    def ended(self, timeout: float) -> bool:
        """Whether it has ended, well or not, within ``timeout`` seconds."""
        done, _ = ray.wait([self._run], timeout=timeout)
        return bool(done)

    def result(self) -> Any:
        """What rank 0's function returned. Raises TrainingFailedError, or RayError when the controller was lost."""
        ray.get(self._run)
        result = ray.get(self._controller.get_result.remote())
        if result.error:
            raise result.error
        return result.return_value

    def kill(self) -> None:
        """End it at once: with the controller die its workers, which it owns."""
        ray.kill(self._controller)


class GroupTrainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose ``fit`` starts a :class:`Group` and returns it, with the workers in the given place."""

    def __init__(self, *args: Any, scaling_config: Place, **kwargs: Any) -> None:
        super().__init__(*args, scaling_config=scaling_config, **kwargs)

    def _create_default_callbacks(self) -> list[Any]:
        # The cleaner is detached: without a dashboard it never learns that its work is done, and never ends.
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]

    def _initialize_and_run_controller(self, **parts: Any) -> Group:
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", str(POLL_SECONDS))
        here = {ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}
        controller = ray.remote(_Controller).options(
            num_cpus=0, label_selector=here, runtime_env={"env_vars": get_env_vars_to_propagate()}
        )
        return Group(controller.remote(**parts | {"scaling_policy": _Settled(self.scaling_config)}))


class _Settled(FixedScalingPolicy):  # type: ignore[misc]
    """Asks no autoscaler, which would hear of the same workers twice, for what is reserved already."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class _Lent(DefaultPlacementGroupHandle):  # type: ignore[misc]
    def shutdown(self) -> None:
        """The owner removes it; the next workers may go into it."""


class _Workers(WorkerGroup):  # type: ignore[misc]
    def _create_placement_group(self, scaling_config: Place, worker_group_context: Any) -> _Lent:
        return _Lent(scaling_config.group)


class _Controller(TrainController):  # type: ignore[misc]
    worker_group_cls = _Workers
