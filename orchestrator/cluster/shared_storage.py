"""Check that the nodes of a cluster share the storage."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from orchestrator.config.spec import Search
from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.storage import remote, settings
from orchestrator.storage.disk import check_writable


def check_search(search: Search, uri: str | None, nodes: int) -> None:
    """Raise UserError for options that read the trials' folders while they run, if ``nodes`` share no folder.

    ``uri`` is the address of an object store, None for a folder.
    """
    options = {
        "--scheduler pbt": search.scheduler == "pbt",
        "--ordered": search.ordered,
        "--trial-timeout": search.trial_timeout,
    }
    used = next((name for name, is_used in options.items() if is_used), None)
    if uri is not None and nodes > 1 and used:
        raise UserError(
            f"{used} reads the trials' folders while they run", got=f"{nodes} nodes and {uri}",
            allowed="a --storage folder that all nodes mount, or one node", code=UNAVAILABLE,
        )  # fmt: skip


def check_storage(storage: Path, seconds: float) -> None:
    """Check that every live node can read and write the storage. Raises UserError (exit 3) with the nodes that cannot.

    Workers write checkpoints on their own nodes, so a folder on the head alone would fail only hours later. A node that
    is cold or busy may take long to start the process that looks: it has ``seconds``. Ray takes a lost node for a live
    one at first: a node that turns out to be lost is left out.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others:
        return
    mark = storage / f".nodes-{secrets.token_hex(4)}"
    mark.write_text("seen")
    uri = remote.uri_of(storage)
    look = _reach if uri else _see
    try:
        checks = {
            node["NodeID"]: ray.remote(look)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(mark)
            for node in others
        }
        ready, _ = ray.wait(list(checks.values()), num_returns=len(checks), timeout=seconds)
        answers = {node: _answer(ref) for node, ref in checks.items() if ref in ready}
    finally:
        mark.unlink(missing_ok=True)
    live = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    silent = [live[node] for node in checks if node in live and node not in answers]
    if blind := {live[node]: trouble for node, trouble in answers.items() if node in live and trouble}:
        raise UserError(
            f"The storage {uri} cannot be used by every node"
            if uri
            else f"The storage {storage} is not shared by every node",
            got="; ".join(f"{name}: {trouble}" for name, trouble in blind.items()),
            fix="Put credentials and endpoint into every node's environment"
            if uri
            else "Put it on a file system that all nodes mount, and name it with --storage",
            code=UNAVAILABLE,
        )
    if silent:
        raise UserError(
            f"The storage {uri or storage} could not be checked on {', '.join(silent)} within {seconds:g} s",
            fix=f"Look at these nodes, or raise {settings.NAMES['start_timeout'][0]} where they are slow to start",
            code=UNAVAILABLE,
        )


def _answer(check: Any) -> str | None:
    import ray

    try:
        trouble: str | None = ray.get(check)
        return trouble
    except ray.exceptions.RayError as error:
        return one_line(error)


def _reach(mark: Path) -> str | None:
    """The error, if any, of a node that writes object storage or its local copies."""
    try:
        check_writable(mark.parent)
    except UserError as error:
        return str(error)
    return None


def _see(mark: Path) -> str | None:
    try:
        if mark.read_text() != "seen":
            return "another file is there"
        own = mark.with_name(f"{mark.name}-{socket.gethostname()}-{os.getpid()}")
        own.write_text("written")
        own.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None
