"""How several sweeps and runs share one Ray cluster: each says what it wants, and all work out the same shares.

Ray gives devices to whoever asks first, and a sweep's processes keep them to its end: the second sweep would wait for
the first. So every driver pins a claim to the cluster's own key-value store and reads those of the others; what each
may hold follows from the claims alone (:func:`shares`), so that nobody has to decide. A sweep that holds more gives a
process back when one of its trials has ended. Nothing is preempted, and no sweep gives its last process away: where
there are more sweeps than processes fit, the newest wait for one to end.
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

from orchestrator.config.spec import Resources
from orchestrator.storage.settings import Settings

FORMAT = 1
NAMESPACE = b"orchestrator"
PREFIX = f"claim-{FORMAT}/"
INTERVAL_SECONDS = 1.0
LOST_SECONDS = 30.0
"""A claim that has not been renewed for so long is nobody's."""


SlotLimit = Callable[[int], int]
"""Told how many processes are of use, it says how many may be held now, at least one."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """What one driver asks of the cluster: up to ``wanted`` processes (or groups) of ``cpus`` and ``gpus`` each."""

    id: str
    queue: str
    priority: int
    cpus: float
    gpus: float
    wanted: int
    since: float


def shares(claims: Iterable[ResourceClaim], total: Mapping[str, float]) -> dict[str, int]:
    """How many processes each claim may have of a cluster with ``total`` ``CPU`` and ``GPU``.

    Dominant resource fairness by progressive filling (Ghodsi et al., NSDI 2011, algorithm 1): the next process goes to
    the queue that has least, in it to the claim that has least for its priority, where least is the larger of its
    shares of the CPUs and of the GPUs. Of equals the higher priority comes first, then the older. What one does not
    want is there for the others.
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
    """The claims of a connected Ray cluster, in its key-value store. A claim is renewed by being pinned again."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[bytes, float]] = {}

    def pin(self, claim: ResourceClaim, beat: int) -> None:
        from orchestrator.cluster.ray_compat import kv_put

        kv_put(PREFIX + claim.id, json.dumps({**asdict(claim), "beat": beat}), namespace=NAMESPACE)

    def remove(self, identifier: str) -> None:
        from orchestrator.cluster.ray_compat import kv_delete

        kv_delete(PREFIX + identifier, namespace=NAMESPACE)

    def claims(self) -> list[ResourceClaim]:
        """Those of living drivers, by how long ago this board saw them change: no two clocks are compared."""
        from orchestrator.cluster.ray_compat import kv_get, kv_list

        found, now = [], time.monotonic()
        for key in kv_list(PREFIX, namespace=NAMESPACE):
            text, identifier = kv_get(key, namespace=NAMESPACE), key.decode().removeprefix(PREFIX)
            if text is None:
                continue
            if self._heard.get(identifier, (b"", 0.0))[0] != text:
                self._heard[identifier] = text, now
            if now - self._heard[identifier][1] > LOST_SECONDS:
                self.remove(identifier)
                continue
            with suppress(ValueError, TypeError, KeyError):
                told = json.loads(text)
                del told["beat"]
                found.append(ResourceClaim(**told))
        return found

    def total(self) -> dict[str, float]:
        import ray

        return {kind: float(ray.cluster_resources().get(kind, 0.0)) for kind in ("CPU", "GPU")}


class Share:
    """A context manager around work on a shared cluster: its claim is pinned, and :meth:`limit` says what follows.

    A thread talks to the cluster, so that a head in trouble delays nothing; then all that is wanted may be held.
    ``say`` is told when that changes.
    """

    def __init__(self, claim: ResourceClaim, board: ClaimStore, say: Callable[[str], None]) -> None:
        self._claim, self._board, self._say = claim, board, say
        self._slots = self._may = self._told = claim.wanted
        self._others = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="share", daemon=True)

    def __enter__(self) -> Share:
        self._beat(0)  # before anything is asked of Ray
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(INTERVAL_SECONDS)
        with suppress(Exception):
            self._board.remove(self._claim.id)

    def limit(self, wanted: int) -> int:
        """So many processes are of use; the others may have the rest. How many may be held now, at least one."""
        self._claim = replace(self._claim, wanted=max(1, wanted))
        may = max(1, self._may)
        if may != self._told and wanted == self._slots:
            self._told = may
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
            self._may = shares(claims.values(), self._board.total())[self._claim.id] if self._others else self._slots
        except Exception:  # whatever it is, the training is worth more than fairness
            self._may = self._slots


@contextmanager
def sharing(
    name: str, settings: Settings, resources: Resources, slots: int, say: Callable[[str], None]
) -> Iterator[SlotLimit]:
    """A share of the connected cluster for up to ``slots`` processes or groups; the whole of one started for this."""
    if settings.ray_address is None:
        yield lambda wanted: wanted
        return
    cpus, gpus = (resources.workers * each for each in (resources.cpus_per_worker, resources.gpus_per_worker))
    identifier = f"{name}-{secrets.token_hex(4)}"
    claim = ResourceClaim(identifier, settings.queue, settings.priority, cpus, gpus, slots, time.time())
    with Share(claim, ClaimStore(), say) as share:
        yield share.limit
