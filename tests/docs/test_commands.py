"""The command line accepts every ``orchestrator ...`` command of README and docs (``make test-docs``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.errors import DONE, UNAVAILABLE, USAGE
from tests.support.commands import typed
from tests.support.page_commands import ROOT, PageCommand, commands, of_text, parse
from workloads.catalog import catalog

pytestmark = pytest.mark.docs

COMMANDS = list({command.words: command for command in commands()}.values())
NOT_HERE = r"is missing|there is nothing at this path|/\S+: no such"
"""A dataset that this machine does not have."""
NOT_AVAILABLE = r"machine is too small|s3://BUCKET"
"""Devices and storage that this machine does not have."""


def _plan(command: PageCommand) -> tuple[str, ...] | None:
    """The words that plan what a command would run, without its ``init=`` model; None if there is nothing to plan."""
    words = command.words
    if words[0] == "submit" and "--" in words:
        words = words[words.index("--") + 1 :]
    words = words[1:] if words[0] == "plan" else words
    if command.inline or len(words) < 2 or words[0] not in ("run", "sweep") or words[1] not in catalog():
        return None
    return ("plan", *(word for word in words if word not in ("--probe", "--json") and not word.startswith("init=")))


PLANNED = [(command, words) for command in COMMANDS if (words := _plan(command))]


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 60
    assert len(PLANNED) > 12


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_documented_command_is_accepted_by_the_parser(command: PageCommand) -> None:
    parse(command.words, whole=not command.inline)


@pytest.mark.parametrize(("command", "words"), PLANNED, ids=[str(command) for command, _ in PLANNED])
def test_a_command_can_be_planned(command: PageCommand, words: tuple[str, ...], tmp_path: Path) -> None:
    """A command whose datasets are missing on this machine is planned with generated data."""
    planned = typed(tmp_path, *words)
    if planned.returncode == USAGE and re.search(NOT_HERE, planned.stderr):
        planned = typed(
            tmp_path, *(word for word in words if not word.startswith(("dataset=", "dataset_", "calibrate_on=")))
        )
    if planned.returncode == UNAVAILABLE:
        assert re.search(NOT_AVAILABLE, planned.stderr), planned.stderr
    else:
        assert planned.returncode == DONE, planned.stderr


REAL = (
    "run recommender dataset=synthetic epochs=20 --local",
    "ls",
    "status latest",
    "report latest",
    "workloads recommender",
)


def test_commands_of_the_first_guide_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in one home, in the order of the first guide."""
    guide = {words for words, _, _ in of_text((ROOT / "docs" / "guide" / "first-run.md").read_text())}
    monkeypatch.chdir(tmp_path)
    for line in REAL:
        words = tuple(line.split())
        assert words in guide
        done = typed(tmp_path / "home", *words)
        assert done.returncode == DONE, done.stderr
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("    orchestrator ls   # all\n", [("ls",)]),
        ("```bash\nA=1 orchestrator run toy \\\n  x=1 ...\n```\n", [("run", "toy", "x=1")]),
        ("    echo '{}' | orchestrator predict m@a --input - k=5 > out\n", [("predict", "m@a", "--input", "-", "k=5")]),
        ('    M="--local x=1"\n    orchestrator run toy $M\n', [("run", "toy", "--local", "x=1")]),
        ("Say `orchestrator sync\nID`, not `orchestrator.sync`.\n", [("sync", "ID")]),
        ("```python\nfrom orchestrator import run\n```\n    from orchestrator import run\n", []),
    ],
)
def test_commands_are_extracted_from_text(text: str, words: list[tuple[str, ...]]) -> None:
    assert [given for given, _, _ in of_text(text)] == words


def test_unknown_option_or_command_is_refused() -> None:
    for words in (("run", "toy", "--worker", "2"), ("submit", "--", "sweeep", "toy"), ("nothing",)):
        with pytest.raises(Exception, match="No such"):
            parse(words)
