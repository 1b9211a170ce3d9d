"""``docs/coverage.md``, what the sources have and where it is here, from ``docs/coverage.toml``. Run it to write it."""

from __future__ import annotations

import ast
import os.path
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.readme_tree import ROOT

DATA = ROOT / "docs" / "coverage.toml"
PAGE = ROOT / "docs" / "coverage.md"
RESULTS = ROOT / "benchmarks" / "results"
COMMAND = "python -m tests.support.coverage_page"

VERDICTS = {
    "tested": "a method or formula, checked against a slow reference or a closed form",
    "upheld": "the claim holds in the stored result",
    "partly": "a part of it holds",
    "not upheld": "the stored result contradicts it",
    "not run": "nothing is stored; the reason is given",
    "no claim": "nothing to uphold: definitions, drawings, results of ours",
}

HEAD = f"""# Coverage of the sources

What each algorithm, table, figure and headline claim became here: the code, a test, the command that repeats it, the
stored result and a verdict. `{COMMAND}` writes this page from `docs/coverage.toml`; a test fails
when a row names what does not exist, or a stored result has no row. Values: the [results pages](results/index.md),
decisions where a source is wrong or silent in the [errata](errata.md).

| verdict | meaning |
| --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """``code``: ``module:name``; ``test``: ``path::name`` below ``tests/unit``; ``results``: files of the results."""

    item: str
    verdict: str
    code: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    command: str = ""
    results: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Part:
    """A chapter or source with its rows."""

    title: str
    rows: tuple[Row, ...] = field(default=())


@cache
def parts() -> tuple[Part, ...]:
    return tuple(
        Part(part["title"], tuple(_row(row) for row in part.get("row", ())))
        for part in tomllib.loads(DATA.read_text(encoding="utf-8"))["part"]
    )


def _row(values: Mapping[str, Any]) -> Row:
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Row(**{**values, **lists})


def page() -> str:
    """The page as it should be."""
    lines = [HEAD + "\n".join(f"| {verdict} | {about} |" for verdict, about in VERDICTS.items())]
    for part in parts():
        lines += ["", f"## {part.title}", "", "| what | code | test | command | result | verdict |", "|---" * 6 + "|"]
        lines += [_line(row) for row in part.rows]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    cells = [
        row.item,
        ", ".join(_link(source(code), code.partition(":")[2] or code) for code in row.code),
        ", ".join(
            _link(ROOT / "tests" / "unit" / test.partition("::")[0], test.partition("::")[2]) for test in row.test
        ),
        f"`{row.command}`" if row.command else "",
        ", ".join(_link(RESULTS / name, Path(name).stem) for name in row.results),
        row.verdict + (f": {row.why}" if row.why else ""),
    ]
    return f"| {' | '.join(cells)} |"


def _link(path: Path, text: str) -> str:
    return f"[`{text}`]({Path(os.path.relpath(path, PAGE.parent)).as_posix()})"


def source(code: str) -> Path:
    """The file of a module or of a function."""
    path = ROOT / code.partition(":")[0].replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def faults() -> Iterator[str]:
    """What rows name that does not exist, and stored results without a row."""
    from orchestrator.reproduce.catalog import all_published

    rows = [row for part in parts() for row in part.rows]
    for row in rows:
        if row.verdict not in VERDICTS:
            yield f"{row.item}: no verdict {row.verdict!r}"
        if row.verdict in ("not run", "partly", "not upheld") and not row.why:
            yield f"{row.item}: {row.verdict} without a reason"
        if row.verdict in ("upheld", "partly", "not upheld"):
            if not (row.results or row.test):
                yield f"{row.item}: {row.verdict} without a result or a test"
            if "(ours)" in row.item:
                yield f"{row.item}: {row.verdict}, but no source claims it"
        yield from (f"{row.item}: no {code}" for code in row.code if not _defined(source(code), code.partition(":")[2]))
        for test in row.test:
            file, _, name = test.partition("::")
            if not _defined(ROOT / "tests" / "unit" / file, name):
                yield f"{row.item}: no {test}"
        yield from (f"{row.item}: no result {name}" for name in row.results if not (RESULTS / name).is_file())
        if row.command and (fault := _command_fault(row.command, list(all_published()))):
            yield f"{row.item}: {fault}"
    named = {name for row in rows for name in row.results}
    stored = (f"published/{file.name}" for file in sorted((RESULTS / "published").glob("*.md")))
    yield from (f"stored without a row: {name}" for name in stored if name not in named)
    commands = {word for row in rows for word in shlex.split(row.command)}
    yield from (f"published without a row: {name}" for name in all_published() if name not in commands)


def _command_fault(command: str, published: list[str]) -> str | None:
    """Why a command is none, or None."""
    words = shlex.split(command)
    if words[:2] == ["orchestrator", "reproduce"]:
        return None if words[2] in published else f"no {words[2]} to reproduce"
    if words[0] == "python" and (ROOT / words[1]).is_file():
        return None
    return f"not a command: {command}"


@cache
def _names(file: Path) -> frozenset[str]:
    """Names that a module defines, and those of its classes with a dot."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{one.name}" for one in inner if isinstance(one, ast.FunctionDef)}
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def _defined(file: Path, name: str) -> bool:
    return file.is_file() and (not name or name in _names(file))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
