"""Fair sharing of one Ray cluster among sweeps and runs.

Ray assigns devices in the order of the requests, and a sweep's processes keep them until it ends, so a second sweep
would wait for the first. Each driver therefore stores a claim in the cluster's key-value store and reads those of the
others. All drivers compute the same shares from the claims (:func:`shares`). A sweep that holds more than its share
releases a process when one of its trials has ended. Nothing is preempted. A sweep releases its last process only for
another one's winner, for which Ray would otherwise have no process before that sweep's end. If there are more sweeps
than processes, the newest wait.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

import ray

from orchestrator.cluster.ray_compat import kv_delete, kv_get, kv_list, kv_put
from orchestrator.config.spec import Resources
from orchestrator.storage.settings import Settings

FORMAT = 1
NAMESPACE = b"orchestrator"
PREFIX = f"claim-{FORMAT}/"
INTERVAL_SECONDS = 1.0
LOST_SECONDS = 30.0
"""A claim that was not renewed for this time is removed."""


SlotLimit = Callable[[int], int]
"""Maps the number of processes that a driver can use to the number that it may hold now: :meth:`Share.limit`."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """The request of one driver: up to ``wanted`` processes, or groups, of ``cpus`` and ``gpus`` each."""

    id: str
    queue: str
    priority: int
    cpus: float
    gpus: float
    wanted: int
    since: float
    waits: bool = False
    """Whether it has released its last process and waits for one for its winner."""


def shares(claims: Iterable[ResourceClaim], total: Mapping[str, float]) -> dict[str, int]:
    """Number of processes of each claim on a cluster with ``total`` ``CPU`` and ``GPU``.

    Dominant resource fairness by progressive filling (Ghodsi et al., NSDI 2011, algorithm 1). The next process goes to
    the queue with the smallest share, and within it to the claim with the smallest share relative to its priority. A
    share is the larger of the fractions of CPUs and GPUs. Ties go to the higher priority, then to the older claim.
    """
    every = sorted(claims, key=lambda claim: (-claim.priority, claim.since, claim.id))
    given = {claim.id: 0 for claim in every}
    held: dict[str, float] = defaultdict(float)
    left = {"CPU": total.get("CPU", 0.0), "GPU": total.get("GPU", 0.0)}

    def part(claim: ResourceClaim) -> float:
        return max(claim.cpus / (total.get("CPU") or 1.0), claim.gpus / (total.get("GPU") or 1.0))

    def fits(claim: ResourceClaim) -> bool:
        return claim.cpus <= left["CPU"] + 1e-9 and claim.gpus <= left["GPU"] + 1e-9

    while asking := [claim for claim in every if given[claim.id] < claim.wanted and fits(claim)]:
        least = min(asking, key=lambda claim: (held[claim.queue], given[claim.id] * part(claim) / claim.priority))
        given[least.id] += 1
        held[least.queue] += part(least)
        left = {"CPU": left["CPU"] - least.cpus, "GPU": left["GPU"] - least.gpus}
    return given


class ClaimStore:
    """The claims on a connected Ray cluster, in its key-value store. A claim is renewed by storing it again."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[bytes, float]] = {}

    def pin(self, claim: ResourceClaim, beat: int) -> None:
        kv_put(PREFIX + claim.id, json.dumps({**asdict(claim), "beat": beat}), namespace=NAMESPACE)

    def remove(self, identifier: str) -> None:
        kv_delete(PREFIX + identifier, namespace=NAMESPACE)

    def claims(self) -> list[ResourceClaim]:
        """Claims of live drivers. Their age is measured by this process' clock, from when it saw them change."""
        claims: list[ResourceClaim] = []
        now = time.monotonic()
        for key in kv_list(PREFIX, namespace=NAMESPACE):
            text = kv_get(key, namespace=NAMESPACE)
            identifier = key.decode().removeprefix(PREFIX)
            if text is None:
                continue
            if self._heard.get(identifier, (b"", 0.0))[0] != text:
                self._heard[identifier] = text, now
            if now - self._heard[identifier][1] > LOST_SECONDS:
                self.remove(identifier)
                continue
            with suppress(ValueError, TypeError, KeyError):
                fields = json.loads(text)
                del fields["beat"]
                claims.append(ResourceClaim(**fields))
        return claims

    def total(self) -> dict[str, float]:
        return {kind: float(ray.cluster_resources().get(kind, 0.0)) for kind in ("CPU", "GPU")}


class Share:
    """Context manager that keeps a claim on a shared cluster. :meth:`limit` returns the current share.

    A thread talks to the cluster, so that a slow head delays nothing. While the head does not answer, the share is all
    that is wanted. ``say`` is called with a line when the share changes.
    """

    def __init__(self, claim: ResourceClaim, board: ClaimStore, say: Callable[[str], None]) -> None:
        self._claim = claim
        self._board = board
        self._say = say
        self._slots = self._may = self._announced = claim.wanted
        self._others = 0
        self._yields = False
        """Whether another claim waits for a process that is its share and not this one's."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="share", daemon=True)

    def __enter__(self) -> Share:
        self._beat(0)  # before the first request to Ray
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(INTERVAL_SECONDS)
        with suppress(Exception):
            self._board.remove(self._claim.id)

    def limit(self, wanted: int, waits: bool = False) -> int:
        """Set the number of processes that can be used, and whether a winner waits for one.

        Returns how many may be held now: at least one, unless another claim's winner waits for it.
        """
        self._claim = replace(self._claim, wanted=max(1, wanted), waits=waits)
        may = self._may or int(not self._yields)
        if may != self._announced and wanted == self._slots:
            self._announced = may
            others = f"{self._others or 'no'} other claim{'s' * (self._others > 1)} on the cluster"
            self._say(f"{may} of {self._slots} at once: {others}")
        return may

    def _run(self) -> None:
        beat = 0
        while not self._ended.wait(INTERVAL_SECONDS):
            beat += 1
            self._beat(beat)

    def _beat(self, beat: int) -> None:
        try:
            self._board.pin(self._claim, beat)
            claims = {claim.id: claim for claim in self._board.claims()} | {self._claim.id: self._claim}
            self._others = len(claims) - 1
            may = shares(claims.values(), self._board.total())
            self._may = may[self._claim.id] if self._others else self._slots
            self._yields = not self._may and any(claim.waits and may[claim.id] for claim in claims.values())
        except Exception:  # training goes on without fair shares
            self._may = self._slots
            self._yields = False


class WholeCluster:
    """The share of a cluster that no one else uses: all that is wanted."""

    def limit(self, wanted: int, waits: bool = False) -> int:
        return wanted


@contextmanager
def sharing(
    name: str, settings: Settings, resources: Resources, slots: int, say: Callable[[str], None]
) -> Iterator[Share | WholeCluster]:
    """Yield the share of the connected cluster, for up to ``slots`` processes or groups.

    A cluster that was started for this command is not shared.
    """
    if settings.ray_address is None:
        yield WholeCluster()
        return
    cpus, gpus = (resources.workers * each for each in (resources.cpus_per_worker, resources.gpus_per_worker))
    identifier = f"{name}-{secrets.token_hex(4)}"
    claim = ResourceClaim(identifier, settings.queue, settings.priority, cpus, gpus, slots, time.time())
    with Share(claim, ClaimStore(), say) as share:
        yield share
