"""Requests to a registered model: `orchestrator serve` next to `mlflow models serve`, while the alias moves.

    python benchmarks/serve_load.py                      # 10,000 requests to each; needs ray[serve]

Both servers answer the same requests (10 items of a user) from 16 connections. The alias that `orchestrator serve`
follows moves between two versions ten times. The table has p50 and p99 of a request and the time of a request at full
load, as ratios; a request that fails ends the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from harness import Benchmark, arguments, environment, spawn
from mlflow import MlflowClient

ORCHESTRATOR = [sys.executable, "-m", "orchestrator"]
CONNECTIONS = 16
MOVES = 10
MODEL = "served"
START_SECONDS = 300.0


@contextmanager
def server(command: list[str], port: int, ready: str) -> Iterator[str]:
    """Run a server until the end of the block. Yields its address once it answers."""
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, start_new_session=True, env=environment(), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            if not asyncio.run(_answers(f"{address}/{ready}", process)):
                output.seek(0)
                said = output.read().decode(errors="replace")[-4000:]
                raise SystemExit(f"{' '.join(command)}\ndoes not answer at {address}\n{said}")
            yield address
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


async def _answers(address: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async with session.get(address) as answer:
                    if answer.status == 200:
                        return True
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    return False


async def load(address: str, count: int, moving: bool) -> tuple[float, list[float], set[str]]:
    """Seconds of all requests, the milliseconds of each, and the versions that have answered (/health)."""
    times: list[float] = []
    seen: set[str] = set()
    numbers = iter(range(count))
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])

    async def connection(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = json.dumps({"dataframe_records": [{"user": number % 100}]})
            started = time.perf_counter()
            async with session.post(
                f"{address}/invocations", data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                content = await answer.json()
                if answer.status != 200 or not content["predictions"]:
                    raise SystemExit(f"request {number} failed: HTTP {answer.status} {content}")
            times.append((time.perf_counter() - started) * 1000)
            if moving and number % max(1, count // MOVES) == 0:
                version = str(1 + number // max(1, count // MOVES) % 2)
                await asyncio.to_thread(client.set_registered_model_alias, MODEL, "champion", version)
                async with session.get(f"{address}/health") as answer:
                    seen.add((await answer.json())["version"])

    began = time.perf_counter()
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(connection(session) for _ in range(CONNECTIONS)))
    return time.perf_counter() - began, times, seen


def contestant(name: str, count: int) -> dict[str, float]:
    """Run the requests against one server: milliseconds a request at full load, and p50 and p99 of a request."""
    port = _free_port()
    if name == "orchestrator serve":
        command = [*ORCHESTRATOR, "serve", f"{MODEL}@champion", "--port", str(port), "--look", "1"]
        ready = "health"
    else:
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", f"models:/{MODEL}/1", "-p", str(port)]
        command += ["--env-manager", "local"]
        ready = "ping"
    with server(command, port, ready) as address:
        asyncio.run(load(address, min(count, 200), False))  # warm-up
        seconds, times, seen = asyncio.run(load(address, count, name == "orchestrator serve"))
    times.sort()
    if name == "orchestrator serve" and count >= 1000 and len(seen) < 2:
        raise SystemExit(f"the alias was not followed: version {', '.join(seen)} answered all requests")
    p99 = times[int(0.99 * (len(times) - 1))]
    return {name: seconds * 1000 / count, f"{name}, p50": statistics.median(times), f"{name}, p99": p99}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def main() -> None:
    parser: Any = arguments("Requests a second and their latency.", rounds=1)
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp())
    os.environ["ORCHESTRATOR_HOME"] = str(home)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{home / 'mlflow.db'}"
    names = ("orchestrator serve", "mlflow models serve")
    try:
        for seed in (1, 2):
            words = ["run", "recommender", "dataset=synthetic", "epochs=3", "--local", f"--seed={seed}"]
            spawn([*ORCHESTRATOR, *words, "--register", MODEL])
        MlflowClient().set_registered_model_alias(MODEL, "champion", "1")
        bench = Benchmark("serve_load", args.rounds, args.patience)
        bench.run({name: partial(contestant, name, args.requests) for name in names})
    finally:
        shutil.rmtree(home, ignore_errors=True)
    ours, theirs = names
    bench.compare("a request at full load, 16 connections", "ms", ours, theirs)
    for part in ("p50", "p99"):
        bench.compare(f"{part} of a request", "ms", f"{ours}, {part}", f"{theirs}, {part}")
    bench.finish()


if __name__ == "__main__":
    main()
