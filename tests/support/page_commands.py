"""Find the ``orchestrator ...`` commands of the pages, and parse them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

from orchestrator.cli.app import app
from orchestrator.cli.exit_codes import USAGE_ERROR

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "benchmarks/*.md", "deploy/**/*.md", "workloads/*/README.md", "docs/**/*.md")
SEPARATORS = ("|", "||", "&&", ";", ">", ">>", "<", "&")
ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.DOTALL)
OURS = re.compile(r'(?:[A-Z_]+=\S+ )*orchestrator |.*\| *orchestrator |[A-Z]="')


@dataclass(frozen=True)
class PageCommand:
    """A command of a page: the words after ``orchestrator``, and where it is."""

    words: tuple[str, ...]
    page: str
    line: int
    inline: bool = False
    """Whether it is inline, where a verb may be without its arguments."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: orchestrator {shlex.join(self.words)}"


def commands() -> list[PageCommand]:
    """Every command of every page, in code blocks and in inline code."""
    return [
        PageCommand(words, str(page.relative_to(ROOT)), line, inline)
        for pattern in PAGES
        for page in sorted(ROOT.glob(pattern))
        for words, line, inline in of_text(page.read_text(encoding="utf-8"))
    ]


def of_text(text: str) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    """Commands of one page, with line and whether inline. ``...`` stands for further words and is removed."""
    variables: dict[str, str] = {}
    for first, code, inline in _code(text):
        for match in re.finditer(r'^([A-Z])="(.*?)"', code):
            variables[match[1]] = match[2]
        expanded = re.sub(r"\$([A-Z])\b", lambda match: variables.get(match[1], match[0]), code)
        for words in _segments(shlex.split(expanded, comments=True)):
            if given := tuple(word for word in words if word != "..."):
                yield given, first, inline


def _code(text: str) -> Iterator[tuple[int, str, bool]]:
    """Logical lines of code blocks, and inline code: the first line, the text, whether it is inline."""
    fenced, pending, first = False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced and line.strip() in ("```", "```bash", "```sh", "```console", "```shell")
            continue
        if not fenced and not line.startswith("    "):
            continue
        first = first if pending else number
        pending += line.strip().removeprefix("$ ")
        if pending.endswith(("\\", "|")):
            pending = pending.removesuffix("\\") + " "
            continue
        if OURS.match(pending):
            yield first, pending, False
        pending = ""
    for match in re.finditer(r"(?<!`)`(orchestrator [^`]+)`(?!`)", text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split()), True


def _segments(words: list[str]) -> Iterator[list[str]]:
    """The words after ``orchestrator`` in each command of a pipeline or list."""
    while words:
        segment = list(takewhile(lambda word: word not in SEPARATORS, words))
        words = words[len(segment) + 1 :]
        while segment and ASSIGNMENT.fullmatch(segment[0]):
            segment = segment[1:]
        if len(segment) > 1 and segment[0] == "orchestrator":
            yield segment[1:]


def parse(words: tuple[str, ...], *, whole: bool = True) -> None:
    """Parse a command without running it. Raises the command line's errors.

    Unless ``whole``, arguments may be missing.
    """
    try:
        _parse(words)
    except USAGE_ERROR as error:
        missing = type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError") or "requires an argument" in str(
            error
        )
        if whole or not missing:
            raise


def _parse(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("orchestrator", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    if words[0] == "submit" and "--" in words:
        _parse(words[words.index("--") + 1 :])
