"""Accelerators that processes have lost: one that is lost twice is kept from the sweep's further trials."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.config.spec import Resources

LIMIT = 2
"""Losses after which a device is left out: the first may be the program's fault."""

PLACE = re.compile(r"GPU (\S+) of node (\w+)")


def this_device() -> str:
    """``GPU 0 of node 3f2a...``, or an empty string where Ray has given this process no GPU."""
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

    Ray lets nobody choose or exclude a GPU. So actors take the free GPUs of its node, one after the other, until one of
    them has the device; that one keeps it, and the others are ended.
    """

    def __init__(self, resources: Resources, say: Callable[[str], None]) -> None:
        self._resources, self._say = resources, say
        self._losses: Counter[str] = Counter()
        self._wanted: dict[str, list[ray.actor.ActorHandle]] = {}
        self._asked: dict[str, ray.ObjectRef] = {}
        self._held: list[ray.actor.ActorHandle] = []

    def room(self, slots: int) -> int:
        """How many of ``slots`` trials at once, or processes of packs, the devices that are left have room for."""
        left_out = sum(losses >= LIMIT for losses in self._losses.values())
        return max(0, slots - left_out * max(1, int(1 / (self._resources.gpus_per_worker or 1) + 1e-9)))

    def report(self, cause: str) -> None:
        """Count the device that ``cause`` names, if it names one."""
        if not (found := PLACE.search(cause)):
            return
        self._losses[found[0]] += 1
        if self._losses[found[0]] == LIMIT:
            self._say(f"{found[0]} was lost {LIMIT} times: it is left out for the rest of the sweep")
            self._wanted[found[0]] = []
            self._ask(found[0])

    def look(self) -> None:
        """Go on with taking devices; asked now and then by whoever waits for reports."""
        for device, answer in list(self._asked.items()):
            if not ray.wait([answer], timeout=0)[0]:
                continue
            with suppress(ray.exceptions.RayError):  # the holder or its node is gone: another one is asked
                if ray.get(answer) == device:
                    *others, keeper = self._wanted.pop(device)
                    self._held.append(keeper)
                    _end(others)
                    del self._asked[device]
                    continue
            self._ask(device)

    def close(self) -> None:
        """Give all back."""
        _end([*self._held, *(holder for holders in self._wanted.values() for holder in holders)])

    def _ask(self, device: str) -> None:
        node = NodeAffinitySchedulingStrategy(PLACE.fullmatch(device)[2], soft=False)  # type: ignore[index]
        holder = ray.remote(_Holder).options(num_cpus=0, num_gpus=1, scheduling_strategy=node).remote()
        self._wanted[device].append(holder)
        self._asked[device] = holder.device.remote()


def _end(holders: list[ray.actor.ActorHandle]) -> None:
    for holder in holders:
        ray.kill(holder)
