"""What an hour of a device costs, by the setting ``prices``: ``gpu=2.50,cpu=0.04``, or with a unit ``EUR gpu=2.50``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from orchestrator.config.spec import Resources
from orchestrator.errors import UserError, unknown

DEVICES = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an hour of a GPU and of a CPU, and their unit. Both count while they are reserved."""

    gpu: float = 0.0
    cpu: float = 0.0
    unit: str = ""

    def __str__(self) -> str:
        """As :func:`parse` reads it."""
        return f"{self.unit} gpu={self.gpu!r},cpu={self.cpu!r}".strip()

    def cost(self, gpu_hours: float, cpu_hours: float) -> float:
        """The cost of some device hours."""
        return gpu_hours * self.gpu + cpu_hours * self.cpu

    def of_device_hour(self, resources: Resources) -> float:
        """The cost of an hour of a device that budgets count: a GPU with its share of the CPUs, else a CPU."""
        hour = self.cost(resources.workers * resources.gpus_per_worker, resources.workers * resources.cpus_per_worker)
        return hour / resources.devices

    def text(self, cost: float) -> str:
        """``12.50 EUR``; a cost below a hundredth with its first digit."""
        return f"{cost:{'.1g' if 0 < cost < 0.01 else '.2f'}} {self.unit}".rstrip()


def parse(text: str) -> Prices:
    """Prices from the setting. Raises UserError."""
    unit, _, pairs = text.strip().partition(" ")
    if "=" in unit or not pairs:  # without a unit
        unit = ""
        pairs = text.strip()
    given: dict[str, float] = {}
    for pair in pairs.split(","):
        device, _, price = pair.strip().partition("=")
        if device not in DEVICES:
            raise unknown("device of the prices", device, DEVICES)
        if not re.fullmatch(r"[0-9.eE+-]+", price) or not _is_price(price):
            raise UserError(
                f"The price of a {device.upper()} hour is not valid", got=repr(price), allowed="a number from 0"
            )
        given[device] = float(price)
    return Prices(**given, unit=unit)


def _is_price(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) >= 0
    except ValueError:
        return False
