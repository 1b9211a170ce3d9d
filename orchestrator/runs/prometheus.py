"""Prometheus metrics of a driver, exported by Ray.

Ray exports them with its own metrics at every node's metrics port, with the prefix ``ray_``. Each series belongs to a
run or sweep. There is none per trial, so that their number stays small.
"""

from __future__ import annotations

from collections.abc import Mapping

LABELS = ("id", "kind", "workload")
"""Labels of every metric: id, kind (``run`` or ``sweep``) and workload."""

STATES = ("waiting", "running", "complete", "pruned", "fail")
"""States of a trial, in Optuna's words."""

DEVICES = ("cpus", "gpus")

TRIALS = "orchestrator_trials"
EPOCHS = "orchestrator_epochs"
DEVICE_SECONDS = "orchestrator_device_seconds"
SPOOL = "orchestrator_spool_depth"


class Exported:
    """Metrics of one run or sweep while a Ray cluster is connected. Setting one takes microseconds.

    Sums are gauges too: Ray keeps the series of a counter as long as its node lives, and those of a gauge end with the
    driver. ``rate()`` accepts both.
    """

    def __init__(self, identifier: str, kind: str, workload: str) -> None:
        from ray.util.metrics import Gauge

        about = dict(zip(LABELS, (identifier, kind, workload)))
        self._trials = Gauge(TRIALS, "A sweep's trials, by state.", (*LABELS, "state"))
        self._epochs = Gauge(EPOCHS, "Epochs this driver has seen trained, all trials together.", LABELS)
        self._device_seconds = Gauge(
            DEVICE_SECONDS, "Seconds that devices were held since the beginning, times how many.", (*LABELS, "device")
        )
        self._spool = Gauge(SPOOL, "Reports that MLflow has not got yet.", LABELS)
        for metric in (self._trials, self._epochs, self._device_seconds, self._spool):
            metric.set_default_tags(about)
        self._states = STATES if kind == "sweep" else ()

    def update(self, trials: Mapping[str, int], epochs: float, device_seconds: Mapping[str, float], spool: int) -> None:
        """Set all metrics."""
        for state in self._states:
            self._trials.set(trials.get(state, 0), {"state": state})
        self._epochs.set(epochs)
        for device in DEVICES:
            self._device_seconds.set(device_seconds.get(device, 0.0), {"device": device})
        self._spool.set(spool)
