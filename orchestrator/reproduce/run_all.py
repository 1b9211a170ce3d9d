"""``orchestrator reproduce SOURCE``: plan or run all that a source publishes, piece by piece, within some hours."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.console import Console, duration
from orchestrator.errors import DONE, PARTIAL, Interrupted, RunFailed, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.provenance import record as provenance
from orchestrator.report.markdown import table as markdown_table
from orchestrator.reproduce import figures, pieces, published, run_cache, table, table_report, table_runs
from orchestrator.reproduce.pieces import PIECE_SECONDS, Block, Estimates, Piece
from orchestrator.reproduce.table_runs import ReproductionBudget
from orchestrator.storage.settings import Settings
from workloads.published import Computation, Table

COLUMNS = ["block", "state", "rows", "pieces", "takes", "done after"]


@dataclass(frozen=True)
class AllRequest:
    """What of a source to plan or run; ``hours`` is the limit, None for none. Without ``run`` nothing is run."""

    source: str
    budget: ReproductionBudget
    run: bool = False
    hours: float | None = None
    seeds: int | None = None
    trials: int | None = None
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    only: Sequence[str] = ()

    def blocks(self, settings: Settings) -> list[Block]:
        """The blocks in the order to run them in. Raises UserError if there is none."""
        selected = pieces.blocks_of(
            self.source, settings, self.budget,
            seeds=self.seeds, trials=self.trials, where=self.where, only=self.only,
        )  # fmt: skip
        if not selected:
            raise UserError(f"{self.source} has no such block", fix="Leave out an option that selects blocks")
        return selected


def reproduce(request: AllRequest, settings: Settings, console: Console) -> tuple[dict[str, Any], int]:
    """Plan or run a source; return the output for ``--json`` and the exit code, 4 if a run leaves a block unfinished.

    However a run ends, the same call continues it. Raises UserError and Interrupted.
    """
    campaign = _Campaign(request, settings, console)
    if request.run:
        try:
            with table_runs.on_cluster(settings, request.budget.local):
                campaign.run()
        except Interrupted:
            raise Interrupted(provenance.command()) from None
        finally:
            campaign.save()
        campaign.blocks = request.blocks(settings)
    result = campaign.save() if request.run else campaign.states()
    rows = [_cells(block) for block in result["blocks"]]
    console.table(f"{request.source}: {'all results' if request.run else 'plan'}", COLUMNS, rows)
    for line in _reasons(result["blocks"]):
        console.say(line)
    if not request.run:
        console.say("Nothing was run: --all runs it, within --hours.")
    return result, DONE if result["complete"] or not request.run else PARTIAL


class _Campaign:
    """One call: the blocks, the end of its time, and what has happened to the rows."""

    def __init__(self, request: AllRequest, settings: Settings, console: Console) -> None:
        self.request = request
        self.settings = settings
        self.console = console
        self.blocks = request.blocks(settings)
        self.origin = table_report.origin(settings, "")
        self.end = math.inf if request.hours is None else time.monotonic() + 3600 * request.hours
        self.finished: set[tuple[str, str | None]] = set()
        self.failed: dict[tuple[str, str | None], str] = {}

    def run(self) -> None:
        """Run each piece until it is done or has failed, or the time is over. Raises Interrupted."""
        for number, block in enumerate(self.blocks, 1):
            if time.monotonic() >= self.end:
                return
            if block.kept_from is not None:
                continue
            self.console.say(f"{number} of {len(self.blocks)}: {block.name}")
            ran = [self._run(block, piece) for piece in block.pieces if not piece.done]
            if any(ran) or not pieces.stored(block, self.settings):
                self._write(block)

    def _run(self, block: Block, piece: Piece) -> bool:
        """Run a piece; return whether it is done. Raises Interrupted if the user interrupts it."""
        key = (block.name, piece.method)
        while time.monotonic() < self.end:
            moment = min(self.end, time.monotonic() + PIECE_SECONDS)
            try:
                with run_cache.until(moment):
                    failure = self._train(block, piece)
            except Interrupted:
                if time.monotonic() < moment:
                    raise
                self.save()
                continue
            except (UserError, RunFailed) as error:
                failure = one_line(error)
            if failure is None:
                self.finished.add(key)
            else:
                self.failed[key] = failure
            self.save()
            return failure is None
        return False

    def _train(self, block: Block, piece: Piece) -> str | None:
        """Run what a piece lacks; return why it failed, if it did."""
        one = block.published
        if isinstance(one, Computation):
            return None  # it is computed when it is written
        request = block.request([piece.method] if piece.method else ())
        if isinstance(one, Table):
            done = table.run(
                one, self.settings, block.budget, self.console, where=request.where, methods=request.methods
            )
            return next((row.failure for each in done.blocks for row in each.rows if row.failure), None)
        drawn = figures.redraw(
            one, self.settings, block.budget, self.console, where=request.where, methods=request.methods
        )
        return next(iter(drawn.failed), None)

    def _write(self, block: Block) -> None:
        """Write the table or figure of the finished rows, as its own command does."""
        done = [piece.method for piece in block.pieces if piece.done or (block.name, piece.method) in self.finished]
        if done:
            rows = [] if len(done) == len(block.pieces) else [name for name in done if name]
            command = block.command(rows)
            published.reproduce(block.request(rows), self.settings, block.budget, self.console, command)

    def states(self) -> dict[str, Any]:
        """The state of every block and piece, in the order in which they are run."""
        estimates = Estimates.of(self.blocks)
        counted: set[str] = set()
        blocks = []
        total: float | None = 0.0
        for block in self.blocks:
            each = [self._piece_state(block, piece, estimates, counted) for piece in block.pieces]
            seconds = [one["seconds"] for one in each]
            takes = None if None in seconds else sum(seconds)
            begins = total
            total = None if total is None or takes is None else total + takes
            failed = [self.failed[key] for piece in block.pieces if (key := (block.name, piece.method)) in self.failed]
            blocks.append({
                "id": block.published.id, "where": dict(block.where), "state": self._state(block, each, begins),
                "why": block.kept_from or next(iter(failed), None), "command": block.command(),
                "seconds": takes, "done_after_seconds": total, "pieces": each,
            })  # fmt: skip
        return {
            "source": self.request.source,
            "command": provenance.command(),
            "hours": self.request.hours,
            "complete": all(block["state"] in ("done", "no data", "left out") for block in blocks),
            "blocks": blocks,
            **self.origin,
        }

    def _piece_state(self, block: Block, piece: Piece, estimates: Estimates, counted: set[str]) -> dict[str, Any]:
        """What is left of a piece; runs that an earlier piece shares are counted there."""
        key = (block.name, piece.method)
        left = [] if key in self.finished else [unit for unit in piece.units if not unit.done]
        seconds = estimates.seconds(unit for unit in left if unit.name not in counted)
        counted |= {unit.name for unit in left}
        state = "failed" if key in self.failed else "to do" if left else "done"
        return {
            "method": piece.method,
            "state": state,
            "runs": len(piece.units),
            "runs_left": len(left),
            "seconds": seconds,
            "pieces": 0 if state == "done" else max(1, math.ceil((seconds or 0.0) / PIECE_SECONDS)),
        }

    def _state(self, block: Block, each: Sequence[Mapping[str, Any]], begins: float | None) -> str:
        """``begins``: seconds until the block's turn in a plan, if they are known."""
        if block.kept_from is not None:
            return "no data" if block.no_data else "left out"
        if all(one["state"] == "done" for one in each):
            return "done"
        if any(one["state"] != "to do" or one["runs_left"] < one["runs"] for one in each):
            return "partial"
        late = time.monotonic() if self.request.run else time.monotonic() + (begins or 0.0)
        return "out of time" if late >= self.end else "to do"

    def save(self) -> dict[str, Any]:
        """Write the states as JSON and as a page, and return them."""
        result = self.states()
        folder = pieces.folder(self.request.source, self.settings)
        private_files.make_folder(folder)
        lines = [
            f"## All results of {self.request.source}", "", f"`{result['command']}`", "",
            table_report.written(result), "", markdown_table(COLUMNS, [_cells(block) for block in result["blocks"]]),
            "", *(f"- {line}" for line in _reasons(result["blocks"])),
        ]  # fmt: skip
        for name, text in (("states.json", json.dumps(result, indent=1)), ("states.md", "\n".join(lines))):
            private_files.write(folder / name, f"{text.rstrip()}\n")
        return result


def _cells(block: Mapping[str, Any]) -> list[str]:
    each = block["pieces"]
    done = sum(piece["state"] == "done" for piece in each)
    left = sum(piece["pieces"] for piece in each)
    times = ["?" if block[name] is None else duration(block[name]) for name in ("seconds", "done_after_seconds")]
    open_ = block["state"] in ("to do", "partial", "out of time")
    return [
        _name(block), block["state"], f"{done}/{len(each)}" if each else "",
        str(left) if open_ else "", *(times if open_ else ["", ""]),
    ]  # fmt: skip


def _name(block: Mapping[str, Any]) -> str:
    return " ".join([block["id"], *block["where"].values()])


def _reasons(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why blocks are not done, each reason once."""
    names: dict[str, list[str]] = {}
    for block in blocks:
        if block["why"]:
            names.setdefault(block["why"], []).append(f"{_name(block)} ({block['state']})")
    return [f"{', '.join(each)}: {why}" for why, each in names.items()]
