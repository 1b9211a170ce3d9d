"""Reproducing all results of a source: plan, time limit, states, and continuation of earlier calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.app import app
from orchestrator.console import Console
from orchestrator.errors import DONE, PARTIAL, Interrupted, UserError
from orchestrator.reproduce import pieces, run_all, table
from orchestrator.reproduce.catalog import all_published, sources
from orchestrator.reproduce.pieces import Block, Estimates, Piece, Unit
from orchestrator.reproduce.run_all import AllRequest
from orchestrator.reproduce.table_runs import ReproductionBudget
from orchestrator.storage.settings import Settings
from tests.support import toy
from workloads.published import Table

pytestmark = pytest.mark.usefixtures("published")

LOCAL = ReproductionBudget(local=True)


@pytest.fixture(autouse=True)
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with a line for each epoch that was trained."""
    monkeypatch.setattr("orchestrator.engine.loop.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setenv(toy.TRAINED, str(tmp_path / "trained"))
    return tmp_path / "trained"


def ask(settings: Settings, **given: Any) -> tuple[dict[str, Any], int]:
    request = AllRequest(**{"source": "toy", "budget": LOCAL, "run": True, **given})
    return run_all.reproduce(request, settings, Console(json=True))


def states(result: dict[str, Any]) -> dict[str, str]:
    return {" ".join([block["id"], *block["where"].values()]): block["state"] for block in result["blocks"]}


def changed(monkeypatch: pytest.MonkeyPatch, **params: Any) -> None:
    """Leave toy-main the rows ``steep`` and ``flat`` and give them further parameters."""
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    rows = {name: one.methods[name] for name in ("steep", "flat")}
    monkeypatch.setitem(all_published(), "toy-main", replace(one, methods=rows, reference=None, common=params))


def test_plan_runs_nothing_and_lists_missing_data(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    result, code = ask(settings, run=False)
    assert code == DONE
    assert states(result) == {
        "toy-theory": "to do",
        "toy-main synthetic": "to do",
        "toy-missing synthetic": "to do",
        "toy-values synthetic": "to do",
        "toy-epochs synthetic": "to do",
        "toy-slopes synthetic": "to do",
        "toy-missing gowalla": "no data",
    }
    main = next(block for block in result["blocks"] if block["id"] == "toy-main")
    assert [(piece["method"], piece["runs"]) for piece in main["pieces"]] == [
        ("steep", 2),
        ("flat", 2),
        ("searched", 3),
    ]
    command = "orchestrator reproduce toy-main --dataset synthetic --seeds 2 --trials 2 --local"
    assert main["command"] == command
    assert "gowalla" in next(block for block in result["blocks"] if block["state"] == "no data")["why"]
    assert not settings.storage.exists()
    assert not pieces.folder("toy", settings).exists()
    told = capsys.readouterr().err
    assert "toy-missing gowalla (no data): " in told
    assert "Nothing was run: --all runs it" in told


@pytest.mark.slow
def test_blocks_that_are_done_are_not_run_again(settings: Settings, trained: Path) -> None:
    wanted = {"only": ("toy-theory", "toy-missing", "toy-epochs"), "seeds": 1}
    result, code = ask(settings, **wanted)
    assert code == DONE
    assert states(result) == {
        "toy-theory": "done",
        "toy-missing synthetic": "done",
        "toy-epochs synthetic": "done",
        "toy-missing gowalla": "no data",
    }
    folder = settings.home / "reproductions"
    written = {path.parent.name for path in folder.glob("*/*.md")}
    assert written == {"toy-theory", "toy-missing-synthetic", "toy-epochs-synthetic", "toy-all"}
    assert json.loads((folder / "toy-all" / "states.json").read_text())["blocks"] == result["blocks"]
    assert "| toy-missing synthetic | done | 1/1 |" in (folder / "toy-all" / "states.md").read_text()
    epochs = trained.read_text()
    again, code = ask(settings, **wanted)
    assert (states(again), code) == (states(result), DONE)
    assert trained.read_text() == epochs
    file = folder / "toy-missing-synthetic" / "toy-missing.json"
    whole = file.read_text()
    file.write_text(whole.replace('"seeds": 1', '"seeds": 3'))  # as its own command with other seeds writes it
    ask(settings, **wanted)
    assert json.loads(file.read_text())["effort"] == json.loads(whole)["effort"]
    file.write_text(whole[: len(whole) // 2])  # a process was killed while it wrote
    ask(settings, **wanted)
    assert json.loads(file.read_text())["effort"] == json.loads(whole)["effort"]


def test_no_block_is_trained_after_the_hours_are_over(settings: Settings, trained: Path) -> None:
    result, code = ask(settings, hours=0.0)
    assert code == PARTIAL
    assert set(states(result).values()) == {"out of time", "no data"}
    assert not trained.exists()


@pytest.mark.slow
def test_next_call_continues_where_the_time_limit_stopped_the_last(
    settings: Settings, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, slow=0.3)
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    long = replace(one.methods["flat"], epochs=12)
    monkeypatch.setitem(all_published(), "toy-main", replace(one, methods={**one.methods, "flat": long}))
    wanted = {"only": ("toy-main",), "seeds": 1}
    result, code = ask(settings, hours=1.5 / 3600, **wanted)
    assert code == PARTIAL
    (block,) = result["blocks"]
    assert block["state"] in ("partial", "out of time")
    assert block["pieces"][1]["state"] == "to do"
    result, code = ask(settings, **wanted)
    assert (code, *states(result).values()) == (DONE, "done")
    # The epochs of both models, and a repetition of the epoch at which each was stopped.
    assert 4 + 12 <= len(trained.read_text().splitlines()) <= 4 + 12 + 2


@pytest.mark.slow
def test_a_piece_that_takes_longer_than_its_time_is_continued(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, slow=1.0)
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    monkeypatch.setitem(all_published(), "toy-main", replace(one, methods={"steep": one.methods["steep"]}))
    monkeypatch.setattr(run_all, "PIECE_SECONDS", 2.5)  # long enough to begin on a busy machine
    calls: list[Any] = []
    run = table.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["methods"])
        return run(*args, **kwargs)

    monkeypatch.setattr(table, "run", counted)
    result, code = ask(settings, only=("toy-main",), seeds=1)
    assert (code, *states(result).values()) == (DONE, "done")
    assert calls.count(("steep",)) > 1  # the row in several pieces
    assert calls[-1] == ()  # the table


def test_failed_row_does_not_prevent_the_other_rows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch)
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    failing = replace(one.methods["steep"], params={"lr": 0.2, "raise_at": 1})
    monkeypatch.setitem(all_published(), "toy-main", replace(one, methods={**one.methods, "steep": failing}))
    result, code = ask(settings, only=("toy-main",), seeds=1)
    assert code == PARTIAL
    (block,) = result["blocks"]
    assert block["state"] == "partial"
    assert "the third layer is missing" in block["why"]
    assert [piece["state"] for piece in block["pieces"]] == ["failed", "done"]
    written = settings.home / "reproductions" / "toy-main-synthetic-flat" / "toy-main.json"
    stored = json.loads(written.read_text())
    assert [row["method"] for row in stored["rows"]] == ["flat"]
    assert "orchestrator reproduce toy-main --dataset synthetic --method flat --seeds 1" in stored["command"]


def test_interruption_keeps_states_and_hides_the_resume_command_of_a_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise Interrupted("orchestrator run --resume x")

    monkeypatch.setattr(table, "run", interrupted)
    with pytest.raises(Interrupted) as caught:
        ask(settings, only=("toy-theory", "toy-main"))
    assert "--resume x" not in str(caught.value)
    stored = json.loads((pieces.folder("toy", settings) / "states.json").read_text())
    assert states(stored) == {"toy-theory": "done", "toy-main synthetic": "to do"}


def test_training_on_the_test_part_is_left_out_without_as_published(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    monkeypatch.setitem(all_published(), "toy-main", replace(one, reads_test=True))
    result, _ = ask(settings, run=False, only=("toy-main",))
    (block,) = result["blocks"]
    assert (block["state"], "--as-published" in block["why"]) == ("left out", True)
    result, _ = ask(settings, run=False, only=("toy-main",), budget=replace(LOCAL, as_published=True))
    (block,) = result["blocks"]
    assert block["state"] == "to do"
    assert " --as-published" in block["command"]


def test_plan_marks_blocks_beyond_the_hours_as_out_of_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("toy-main", "toy-missing"):
        one = all_published()[name]
        assert isinstance(one, Table)
        regime = replace(one.regime, cost=lambda params, root: (600.0, 0.0))
        monkeypatch.setitem(all_published(), name, replace(one, regime=regime))
    wanted = {"run": False, "only": ("toy-main", "toy-missing"), "where": {"dataset": ("synthetic",)}}
    result, _ = ask(settings, **wanted, hours=1.0)
    assert states(result) == {"toy-missing synthetic": "to do", "toy-main synthetic": "out of time"}
    missing, main = result["blocks"]
    assert (missing["seconds"], missing["done_after_seconds"]) == (2 * 4 * 600, 2 * 4 * 600)
    # Four final models of 4 epochs, 2 trials of 4 epochs, and 2 models of at most 4 epochs.
    assert main["seconds"] == (4 * 4 + 2 * 4 + 2 * 4) * 600
    assert [piece["pieces"] for piece in main["pieces"]] == [2, 2, 3]  # of at most an hour: 80, 80 and 160 minutes


def test_blocks_are_ordered_by_printed_values_per_hour(settings: Settings) -> None:
    toy_main, toy_values = all_published()["toy-main"], all_published()["toy-values"]

    def block(seconds: float, printed: int, one: Any = toy_main) -> Block:
        return Block(one, {}, LOCAL, (Piece("a", (Unit(f"{seconds}", seconds),), printed),))

    long, short, none = block(3600, 90), block(60, 9), block(5, 0)
    figure, unknown = block(1, 0, toy_values), Block(toy_main, {}, LOCAL, (Piece("a", (Unit("u"),), 9),))
    ordered = sorted((figure, none, unknown, long, short), key=lambda one: pieces._rank(one, Estimates()))
    assert ordered == [short, long, none, unknown, figure]


def test_estimates_scale_with_finished_runs_and_count_shared_runs_once() -> None:
    units = (Unit("a", 10.0, True, 25.0), Unit("b", 10.0, True, 15.0), Unit("c", 5.0), Unit("s", 7.0, search=True))
    block = Block(all_published()["toy-main"], {}, LOCAL, (Piece("x", units), Piece("y", (Unit("c", 5.0),))))
    estimates = Estimates.of([block])
    assert estimates.factors == {False: 2.0}
    assert estimates.seconds((*units, Unit("c", 5.0))) == 2 * 5 + 7
    assert estimates.seconds((Unit("d"),)) is None


def test_figure_has_a_block_for_each_dataset_and_backbone_of_its_lines(settings: Settings) -> None:
    figure = all_published()["thesis-fig5.3"]
    every = [{"dataset": "ml-100k", "backbone": "mf"}, {"dataset": "ml-100k", "backbone": "lightgcn"}]
    assert pieces._places(figure, {}) == every  # type: ignore[arg-type]
    assert pieces._places(figure, {"backbone": ("lightgcn",), "dataset": ("lastfm",)}) == [  # type: ignore[arg-type]
        {"dataset": "lastfm", "backbone": "lightgcn"}
    ]
    assert pieces._places(figure, {"batch_size": ("32",)}) == []  # type: ignore[arg-type]
    assert pieces._places(all_published()["thesis-fig3.6"], {"backbone": ("mf",)}) == [  # type: ignore[arg-type]
        {"dataset": "ml-100k", "backbone": "mf"}
    ]


def test_reproduce_has_a_command_for_each_source(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"thesis", "vera", "l2r", "toy"} <= set(sources())
    app(["reproduce", "--help"], standalone_mode=False)
    assert " thesis " in capsys.readouterr().out
    app(["reproduce", "thesis", "--help"], standalone_mode=False)
    listed = capsys.readouterr().out
    assert all(option in listed for option in ("--all", "--hours", "--only", "--backbone", "--as-published"))
    with pytest.raises(UserError, match="Did you mean 'toy-main'"):
        app(["reproduce", "toy", "--only", "toy-mian", "--local"], standalone_mode=False)
    with pytest.raises(UserError, match="no such block"):
        app(["reproduce", "toy", "--dataset", "synthetic", "--only", "toy-theory"], standalone_mode=False)
