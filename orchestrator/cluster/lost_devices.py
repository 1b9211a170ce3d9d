"""Lost accelerators: a device that processes lose twice is excluded from the rest of a sweep.

A program can lose a healthy device, by an assertion in a kernel for example. So losses of a trial that has lost other
devices too do not count, and the last device is excluded only if several trials have lost it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TypeAlias

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.connection import Node, slots
from orchestrator.config.spec import Resources

LIMIT = 2
"""Losses after which a device is excluded. The first one may be the program's fault."""

CERTAIN = 3
"""Number of trials that have lost the last device before it is excluded, which ends the sweep."""

ROUND_SECONDS = 10.0
"""Interval of the attempts to take a lost device that another process still holds."""

Device: TypeAlias = tuple[str, str]
"""Node and number of a GPU."""

DEVICES = re.compile(r"GPU (\S+) of node (\w+)")


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

    Ray cannot exclude a GPU. So actors request all GPUs of its node at once, one each. The one that gets the lost
    device keeps it, and the others end as soon as they have answered. A process of several GPUs cannot say which of
    them it has lost: each of them counts.

    A device is used again if the trials that lost it turn out to lose others as well.

    ``nodes`` are the resources of the cluster's nodes by their ids.
    """

    def __init__(self, resources: Resources, nodes: Mapping[str, Node], say: Callable[[str], None]) -> None:
        self._resources = resources
        self._nodes = nodes
        self._say = say
        self._losses: list[tuple[frozenset[Device], frozenset[int]]] = []
        """The devices and the trials of each process that has lost them."""
        self._excluded: set[Device] = set()
        self._wanted: set[Device] = set()
        """Excluded devices that no actor holds yet."""
        self._asked: dict[ray.ObjectRef, tuple[str, ray.actor.ActorHandle]] = {}
        """The actors that have not answered, with their nodes."""
        self._held: dict[Device, ray.actor.ActorHandle] = {}
        self._next_round = 0.0

    def room(self, most: int) -> int:
        """Number of trials at once, or processes of packs, that fit on the remaining devices; at most ``most``."""
        excluded = Counter(node for node, _ in self._excluded)
        left = [{**node, "GPU": node["GPU"] - excluded[name]} for name, node in self._nodes.items()]
        return min(most, slots(left, self._resources))

    def report(self, cause: str, *trials: int) -> None:
        """Count the loss of the devices that ``cause`` names, if it names any, by a process that trained ``trials``.

        Without trials, as for a winner, each loss counts as one of another trial.
        """
        if not (match := DEVICES.search(cause)):
            return
        self._losses.append((frozenset((match[2], number) for number in match[1].split(",")), frozenset(trials)))
        excluded = self._broken()
        for node, number in sorted(excluded - self._excluded):
            self._say(f"GPU {number} of node {node} was lost {LIMIT} times: it is left out for the rest of the sweep")
            self._wanted.add((node, number))
        for device in sorted(self._excluded - excluded):
            self._say(f"GPU {device[1]} of node {device[0]} is used again: a trial that lost it has lost others too")
            self._wanted.discard(device)
            if holder := self._held.pop(device, None):
                ray.kill(holder)
        self._excluded = excluded
        self._next_round = 0.0  # the process that held it has ended
        self.poll()

    def _broken(self) -> set[Device]:
        """The devices to exclude."""
        counted = [(devices, trials) for devices, trials in self._losses if not any(map(self._loses_any, trials))]
        losses: dict[Device, list[frozenset[int]]] = {}
        for devices, trials in counted:
            for device in devices:
                losses.setdefault(device, []).append(trials)
        broken = {device for device, by in losses.items() if len(by) >= LIMIT}
        if len(broken) == sum(int(node.get("GPU", 0)) for node in self._nodes.values()):
            return {device for device in broken if _separate(losses[device]) >= CERTAIN} or broken - {max(broken)}
        return broken

    def _loses_any(self, trial: int) -> bool:
        """Whether a trial has lost different devices, so that it is the cause itself."""
        own = [devices for devices, trials in self._losses if trial in trials]
        return any(a.isdisjoint(b) for a, b in combinations(own, 2))

    def poll(self) -> None:
        """Continue to take devices. Called regularly by the loop that waits for reports."""
        answers = list(self._asked)
        for answer in ray.wait(answers, num_returns=len(answers), timeout=0)[0] if answers else ():
            node, holder = self._asked.pop(answer)
            with suppress(ray.exceptions.RayError):  # the actor or its node is gone
                match = DEVICES.fullmatch(ray.get(answer))
                if match and (device := (node, match[1])) in self._wanted:
                    self._wanted.remove(device)
                    self._held[device] = holder
                    continue
            ray.kill(holder)
        wanted = {node for node, _ in self._wanted}
        for answer, (node, holder) in list(self._asked.items()):
            if node not in wanted:
                ray.kill(holder)
                del self._asked[answer]
        if wanted and time.monotonic() >= self._next_round:
            self._next_round = time.monotonic() + ROUND_SECONDS
            for node in wanted - {node for node, _ in self._asked.values()}:
                self._request_all(node)

    def close(self) -> None:
        """Release all devices."""
        for holder in [*self._held.values(), *(holder for _, holder in self._asked.values())]:
            ray.kill(holder)

    def _request_all(self, node: str) -> None:
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        for _ in range(int(self._nodes.get(node, {}).get("GPU", 0))):
            holder = ray.remote(_Holder).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
            self._asked[holder.device.remote()] = (node, holder)


def _separate(losses: Sequence[frozenset[int]]) -> int:
    """Number of losses that have no trial in common."""
    seen: set[int] = set()
    count = 0
    for trials in losses:
        if seen.isdisjoint(trials):
            seen |= trials
            count += 1
    return count
