"""Lost accelerators: a device that processes lose twice is excluded from the rest of a sweep."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.config.spec import Resources

LIMIT = 2
"""Losses after which a device is excluded. The first one may be the program's fault."""

DEVICE = re.compile(r"GPU (\S+) of node (\w+)")


def this_device() -> str:
    """``GPU 0 of node 3f2a...``, or an empty string if Ray has assigned no GPU to this process."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    devices = context.get_accelerator_ids().get("GPU") or ()
    return f"GPU {','.join(devices)} of node {context.get_node_id()}" if devices else ""


class _Holder:
    """An actor that holds a whole GPU."""

    def device(self) -> str:
        return this_device()


class LostDevices:
    """The devices that trials of a sweep have lost.

    Ray cannot exclude a GPU. So actors take the free GPUs of its node one after the other until one of them gets the
    lost device. That actor keeps it, and the others end.
    """

    def __init__(self, resources: Resources, say: Callable[[str], None]) -> None:
        self._resources, self._say = resources, say
        self._losses: Counter[str] = Counter()
        self._wanted: dict[str, list[ray.actor.ActorHandle]] = {}
        self._asked: dict[str, ray.ObjectRef] = {}
        self._held: list[ray.actor.ActorHandle] = []

    def room(self, slots: int) -> int:
        """Number of trials at once, or processes of packs, that fit on the remaining devices; at most ``slots``."""
        left_out = sum(losses >= LIMIT for losses in self._losses.values())
        return max(0, slots - left_out * max(1, int(1 / (self._resources.gpus_per_worker or 1) + 1e-9)))

    def report(self, cause: str) -> None:
        """Count the loss of the device that ``cause`` names, if it names one."""
        if not (match := DEVICE.search(cause)):
            return
        device = match[0]
        self._losses[device] += 1
        if self._losses[device] == LIMIT:
            self._say(f"{device} was lost {LIMIT} times: it is left out for the rest of the sweep")
            self._wanted[device] = []
            self._ask(device)

    def look(self) -> None:
        """Continue to take devices. Called regularly by the loop that waits for reports."""
        for device, answer in list(self._asked.items()):
            if not ray.wait([answer], timeout=0)[0]:
                continue
            with suppress(ray.exceptions.RayError):  # the actor or its node is gone: start another one
                if ray.get(answer) == device:
                    *others, keeper = self._wanted.pop(device)
                    self._held.append(keeper)
                    _end(others)
                    del self._asked[device]
                    continue
            self._ask(device)

    def close(self) -> None:
        """Release all devices."""
        _end([*self._held, *(holder for holders in self._wanted.values() for holder in holders)])

    def _ask(self, device: str) -> None:
        node = NodeAffinitySchedulingStrategy(DEVICE.fullmatch(device)[2], soft=False)  # type: ignore[index]
        holder = ray.remote(_Holder).options(num_cpus=0, num_gpus=1, scheduling_strategy=node).remote()
        self._wanted[device].append(holder)
        self._asked[device] = holder.device.remote()


def _end(holders: list[ray.actor.ActorHandle]) -> None:
    for holder in holders:
        ray.kill(holder)
