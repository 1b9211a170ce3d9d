"""The split of a collection into sessions by topics, cached on disk with a fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.data import fingerprint
from workloads.data.conversion_cache import cached_arrays
from workloads.data.retrieval.types import Retrieval
from workloads.lifelong.clusters import clusters
from workloads.seeding import random_order

VERSION = 1
"""Version of the construction. Part of the cached files' names."""


_TOPICS = 2**15 - 1  # of int16


@dataclass(frozen=True)
class Stream:
    """How a collection is divided into sessions 0 to T. See the parameters ``split_...``."""

    sessions: int = 4
    first: float = 0.5
    main: float = 0.7
    topics: int = 5
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Sessions:
    """The session and topic of each document.

    ``session`` (N,), int16: when the document arrives; -1 for a document without text, which never does. ``topic``
    (N,), int16. ``main`` (T + 1,), int16: the main topic of each session; -1 for session 0.
    """

    session: NDArray[np.int16]
    topic: NDArray[np.int16]
    main: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.main)

    def arriving(self, session: int) -> NDArray[np.int64]:
        """The documents of a session, ascending."""
        return np.flatnonzero(self.session == session)

    def until(self, session: int) -> NDArray[np.int64]:
        """The documents of all sessions up to this one, in order of arrival."""
        return np.concatenate([self.arriving(number) for number in range(session + 1)])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the whole construction, in hex."""
        parts = (self.session, self.topic, self.main)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def load_sessions(name: str, root: Path, data: Retrieval, stream: Stream) -> Sessions:
    """The sessions of a dataset, cached under the dataset's fingerprint.

    Raises:
        ValueError: a session would have no documents, or there are fewer documents than clusters.
        workloads.data.DataError: a file of the dataset is missing.
        workloads.data.errors.CacheUnwritable: the cache cannot be written.
    """
    identity = f"{VERSION} {stream} {fingerprint(name, root)} {len(data.docs)}"

    def make() -> dict[str, NDArray[np.int16]]:
        sessions = build(data, stream)
        return {"session": sessions.session, "topic": sessions.topic, "main": sessions.main}

    return Sessions(**cached_arrays("lifelong", identity, make))


def build(data: Retrieval, stream: Stream) -> Sessions:
    """Divide a collection into sessions.

    Session 0 has a random share ``first`` of each topic's documents. The rest is divided equally over the later
    sessions. The share ``main`` of a session is from its main topic, as far as documents are left of it, and the others
    are mixed. The main topics are the largest ones in random order, repeated if there are more sessions than topics.

    Raises:
        ValueError: a session would have no documents, or there are fewer documents than clusters.
    """
    with_text = np.setdiff1d(np.arange(len(data.docs)), data.empty_docs)
    return divide(topics_of(data, stream), with_text, stream)


def divide(topic: NDArray[np.int16], with_text: NDArray[np.int64], stream: Stream) -> Sessions:
    """The sessions of documents of these topics, (N,), of which those ``with_text`` arrive. As :func:`build`."""
    session = np.full(len(topic), -1, np.int16)
    order = random_order(len(topic), stream.seed)
    order = order[np.isin(order, with_text)]
    waiting: list[NDArray[np.int64]] = []
    for number in range(int(topic.max()) + 1):
        own = order[topic[order] == number]
        count = round(stream.first * len(own))
        session[own[:count]] = 0
        waiting.append(own[count:])
    rest = sum(map(len, waiting))
    if rest < stream.sessions or not (session == 0).any():
        raise ValueError(
            f"split_sessions={stream.sessions} with split_first={stream.first:g} leaves a session without documents: "
            f"{len(order)} of them have text, {rest} are left after session 0. Set fewer sessions or "
            "topics, or another share"
        )
    mains = _mains([len(part) for part in waiting], stream)
    sizes = [len(part) for part in np.array_split(np.arange(rest), stream.sessions)]
    for number, (main, size) in enumerate(zip(mains, sizes), 1):
        count = min(len(waiting[main]), round(stream.main * size))
        session[waiting[main][:count]] = number
        waiting[main] = waiting[main][count:]
    mixed = np.concatenate(waiting)
    mixed = mixed[random_order(len(mixed), stream.seed + 1)]
    short = [size - int((session == number).sum()) for number, size in enumerate(sizes, 1)]
    session[mixed] = np.repeat(np.arange(1, stream.sessions + 1), short)
    return Sessions(session, topic, np.array([-1, *mains], np.int16))


def topics_of(data: Retrieval, stream: Stream) -> NDArray[np.int16]:
    """Each document's topic, (N,).

    The topic is the part of the id before the first slash, if all ids have one and there are several topics; otherwise
    the topics are clusters.

    Raises:
        ValueError: there are fewer documents than clusters, or too many topics.
    """
    names = [name.partition("/")[0] if "/" in name else "" for name in data.doc_ids.to_pylist()]
    different = list(dict.fromkeys(names))
    if len(different) > 1 and "" not in different:
        if len(different) > _TOPICS:
            raise ValueError(
                f"the documents' ids name {len(different):,} topics before their first slash, as {different[0]!r}, and "
                f"at most {_TOPICS:,} are possible. Take the slashes out of the ids, so that topics are clusters"
            )
        topic_of = {name: number for number, name in enumerate(different)}
        return np.array([topic_of[name] for name in names], np.int16)
    if stream.topics > len(data.docs):
        raise ValueError(f"split_topics={stream.topics} is more than the {len(data.docs)} documents")
    return clusters(data.docs.to_pylist(), stream.topics, stream.seed)


def query_topics(data: Retrieval, topic: NDArray[np.int16]) -> NDArray[np.int16]:
    """The most frequent topic of each query's relevant documents, (Q,); -1 if it has none."""
    relevant = data.judgements[data.judgements[:, 2] > 0]
    votes = np.zeros((len(data.queries), int(topic.max()) + 1), np.int64)
    np.add.at(votes, (relevant[:, 0], topic[relevant[:, 1]]), 1)
    return np.where(votes.any(1), votes.argmax(1), -1).astype(np.int16)


def arrivals(sessions: Sessions, topics: NDArray[np.int16], seed: int) -> NDArray[np.int16]:
    """The session in which each query arrives, (Q,): that of a random document of its topic (E-L9).

    Interests then drift as the documents do. A query without a topic, or of one whose documents have no text, arrives
    in session 0.

    Args:
        sessions: the documents' sessions.
        topics: of the queries, (Q,), -1 for none.
        seed: seed of the draws.
    """
    draws = np.random.PCG64(seed + 3).random_raw(len(topics))
    arrived = np.zeros(len(topics), np.int16)
    for topic in np.unique(topics[topics >= 0]).tolist():
        times = sessions.session[(sessions.topic == topic) & (sessions.session >= 0)]
        own = np.flatnonzero(topics == topic)
        if len(times):
            arrived[own] = times[(draws[own] % len(times)).astype(np.int64)]
    return arrived


def _mains(sizes: list[int], stream: Stream) -> list[int]:
    largest = np.argsort(-np.array(sizes), kind="stable")[: stream.sessions]
    order = largest[random_order(len(largest), stream.seed + 2)]
    return [int(order[number % len(order)]) for number in range(stream.sessions)]
