"""Fair share of a cluster: slots by queue and priority, at least one each, also while the head is unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cluster import fair_share
from orchestrator.cluster.fair_share import LOST_SECONDS, ClaimStore, ResourceClaim, Share, shares
from orchestrator.config.spec import Resources
from orchestrator.storage.settings import resolve
from tests.support.toy import Clock
from tests.support.waiting import until

NODE = {"CPU": 16.0, "GPU": 4.0}


def claim(name: str, wanted: int = 99, **about: Any) -> ResourceClaim:
    return ResourceClaim(
        **{"id": name, "queue": "q", "priority": 1, "cpus": 1, "gpus": 1, "wanted": wanted, "since": 0} | about
    )


# Shares


def test_claims_get_all_wanted_slots_where_there_is_room() -> None:
    assert shares([claim("a", 1), claim("b", 3)], NODE) == {"a": 1, "b": 3}
    assert shares([claim("a")], NODE) == {"a": 4}
    assert shares([], NODE) == {}


def test_equal_claims_get_equal_shares_and_unwanted_slots_go_to_others() -> None:
    assert shares([claim("a"), claim("b")], NODE) == {"a": 2, "b": 2}
    assert shares([claim("a"), claim("b", 1)], NODE) == {"a": 3, "b": 1}
    assert shares([claim("a", since=2), claim("b", since=1), claim("c", since=3)], NODE) == {"a": 1, "b": 2, "c": 1}


def test_priority_is_a_weight_within_a_queue() -> None:
    assert shares([claim("a", priority=3), claim("b")], NODE) == {"a": 3, "b": 1}
    assert shares([claim("a", priority=100), claim("b")], NODE) == {"a": 3, "b": 1}, "each claim gets a slot"


def test_queue_of_many_claims_gets_no_more_than_a_queue_of_one() -> None:
    team = [claim(f"t{number}", queue="team") for number in range(3)]
    given = shares([*team, claim("alone", queue="me")], {"CPU": 16, "GPU": 8})
    assert given["alone"] == 4
    assert sum(given[c.id] for c in team) == 4
    assert min(given.values()) >= 1


def test_scarce_slots_go_to_higher_priority_and_then_to_earlier_claims() -> None:
    few = [claim("old", since=1), claim("new", since=3), claim("urgent", since=2, priority=2)]
    assert shares(few, {"CPU": 16, "GPU": 2}) == {"urgent": 1, "old": 1, "new": 0}
    assert shares([claim("large", gpus=8), claim("small")], NODE) == {"large": 0, "small": 4}


def test_shares_match_the_example_of_ghodsi_et_al() -> None:
    """Ghodsi et al., section 4.1: 9 CPUs and 18 GB; tasks of <1 CPU, 4 GB> and <3 CPUs, 1 GB> get 3 and 2."""
    users = [claim("A", cpus=1, gpus=4), claim("B", cpus=3, gpus=1)]
    assert shares(users, {"CPU": 9, "GPU": 18}) == {"A": 3, "B": 2}


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(1, 9)),
        max_size=7,
    ),
    st.integers(1, 24),
    st.integers(0, 8),
)
def test_shares_fit_the_cluster_and_leave_no_usable_slot(asked: list[Any], cpus: int, gpus: int) -> None:
    claims = [
        claim(str(k), wanted, queue=queue, priority=priority, cpus=c, gpus=g)
        for k, (queue, priority, c, g, wanted) in enumerate(asked)
    ]
    given = shares(claims, {"CPU": cpus, "GPU": gpus})
    left_cpus = cpus - sum(given[c.id] * c.cpus for c in claims)
    left_gpus = gpus - sum(given[c.id] * c.gpus for c in claims)
    assert left_cpus >= 0
    assert left_gpus >= 0
    for c in claims:
        assert 0 <= given[c.id] <= c.wanted
        assert given[c.id] == c.wanted or c.cpus > left_cpus or c.gpus > left_gpus
    assert given == shares(reversed(claims), {"CPU": cpus, "GPU": gpus}), "every driver must compute the same"


# The claim store


class Store:
    """A replacement of the cluster's key-value store."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.away = False

    def put(self, key: str, value: str, namespace: bytes) -> None:
        self._check(namespace)
        self.kept[key.encode()] = value.encode()

    def get(self, key: bytes, namespace: bytes) -> bytes | None:
        self._check(namespace)
        return self.kept.get(key)

    def keys(self, prefix: str, namespace: bytes) -> list[bytes]:
        self._check(namespace)
        return [key for key in self.kept if key.startswith(prefix.encode())]

    def remove(self, key: str, namespace: bytes) -> None:
        self._check(namespace)
        self.kept.pop(key.encode(), None)

    def _check(self, namespace: bytes) -> None:
        assert namespace == b"orchestrator"
        if self.away:
            raise ConnectionError("the head is away")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:

    store = Store()
    monkeypatch.setattr(fair_share, "kv_put", store.put)
    monkeypatch.setattr(fair_share, "kv_get", store.get)
    monkeypatch.setattr(fair_share, "kv_list", store.keys)
    monkeypatch.setattr(fair_share, "kv_delete", store.remove)
    monkeypatch.setattr(ClaimStore, "total", lambda self: NODE)
    return store


def test_a_claim_that_is_not_renewed_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(fair_share, "time", clock)
    board, other = ClaimStore(), ClaimStore()
    board.pin(claim("a"), 0)
    other.pin(claim("b"), 0)
    assert board.claims() == [claim("a"), claim("b")]
    clock.sleep(LOST_SECONDS - 1)
    other.pin(claim("b"), 1)
    board.claims()
    clock.sleep(2)
    assert board.claims() == [claim("b")]
    assert len(store.kept) == 1


def test_entries_that_are_not_valid_claims_are_ignored(store: Store) -> None:
    board = ClaimStore()
    board.pin(claim("a"), 0)
    store.kept[b"claim-1/odd"] = b'{"id": "odd", "beat": 1}'
    store.kept[b"claim-1/half"] = b'{"id":'
    store.kept[b"claim-2/new"] = b"{}"
    assert board.claims() == [claim("a")]


# The share


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "INTERVAL_SECONDS", 0.01)


@pytest.mark.usefixtures("fast")
def test_second_claim_gets_half_and_returns_it_at_its_end(store: Store) -> None:
    lines: list[str] = []
    with Share(claim("a", 4), ClaimStore(), lines.append) as first:
        assert first.limit(4) == 4
        with Share(claim("b", 4), ClaimStore(), lines.append) as second:
            assert second.limit(4) == 2
            assert until(lambda: first.limit(4) == 2)
            second.limit(1)
            assert until(lambda: first.limit(4) == 3)
        assert until(lambda: first.limit(4) == 4)
    assert store.kept == {}
    assert lines[0] == "2 of 4 at once: 1 other claim on the cluster"
    assert lines[-1] == "4 of 4 at once: no other claim on the cluster"


@pytest.mark.usefixtures("fast")
def test_share_is_at_least_one_with_many_claims(store: Store) -> None:
    for number in range(9):
        ClaimStore().pin(claim(f"older {number}", since=-1), 0)
    with Share(claim("a", 4), ClaimStore(), lambda line: None) as share:
        assert share.limit(4) == 1


@pytest.mark.usefixtures("fast")
def test_last_slot_goes_to_the_waiting_winner_of_the_older_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would give the slot to the newer sweep, and the older one would wait until that sweep ends."""
    monkeypatch.setattr(ClaimStore, "total", lambda self: {"CPU": 1.0, "GPU": 1.0})
    lines: list[str] = []
    with (
        Share(claim("a", 1), ClaimStore(), print) as old,
        Share(claim("b", 1, since=1), ClaimStore(), lines.append) as new,
    ):
        assert new.limit(1) == 1
        old.limit(1, waits=True)
        assert until(lambda: new.limit(1) == 0)
        assert lines == ["0 of 1 at once: 1 other claim on the cluster"]
        assert old.limit(1) == 1
        assert until(lambda: new.limit(1) == 1)
        new.limit(1, waits=True)
        assert old.limit(1) == 1, "the winner of a newer sweep must wait"


@pytest.mark.usefixtures("fast")
def test_share_is_not_limited_while_the_head_is_unreachable(store: Store) -> None:
    with Share(claim("a", 4), ClaimStore(), lambda line: None) as share:
        ClaimStore().pin(claim("b", 4), 0)
        assert until(lambda: share.limit(4) == 2)
        store.away = True
        assert until(lambda: share.limit(4) == 4)


@pytest.mark.usefixtures("fast")
def test_share_is_claimed_only_on_a_cluster_with_an_address(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with fair_share.sharing("s", resolve(), Resources(), 4, lambda line: None) as share:
        assert share.limit(4) == 4
        assert store.kept == {}
    monkeypatch.setenv("ORCHESTRATOR_QUEUE", "team")
    settings = resolve({"ray_address": "head:6379", "priority": "3"})
    with fair_share.sharing(
        "s", settings, Resources(workers=2, gpus_per_worker=1, cpus_per_worker=3), 2, print
    ) as share:
        (mine,) = ClaimStore().claims()
        assert (mine.queue, mine.priority, mine.cpus, mine.gpus, mine.wanted) == ("team", 3, 6, 2, 2)
        assert share.limit(2) == 2
