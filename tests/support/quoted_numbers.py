"""Compare the numbers of a results page with those of the artefacts that it names.

A page consists of scopes. A heading begins one, and so does a line ``<!-- from: A B -->``. The artefacts of a scope are
those that it mentions: files below ``benchmarks/results``; scripts, as ``benchmarks/NAME.py`` (its ``NAME.md`` where
there is one, else ``NAME.json``; with ``--only BCL`` its ``NAME-bcl.json``); and ``reproduce ID`` (all of
``published/ID-*.md``). A comment names files below ``benchmarks/results`` or its ``published``, or IDs. A row of a
table is its own scope if it mentions artefacts, has a cell ``"`` (those of the row before), or begins with
numbers of tables (``5.2, 6.3``).

Numbers are values with a point or comma, and those with two or more digits in table cells after the first. ``a ± b``
and ``a (b to c)`` must be together in an artefact too. Not detected: a number from another row of the same artefact.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RESULTS = "benchmarks/results"

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+)"
_NUMBER = rf"[-+]?{_DIGITS}(?![\w^]|[.,]\d)"
GROUP = re.compile(
    rf"(?<![\w.,^@-])(?P<first>{_NUMBER})"
    rf"(?:\*\*)?(?: ± (?P<spread>{_NUMBER})|,? ?(?:95% )?[(\[](?P<low>{_NUMBER})(?: to |, )(?P<high>{_NUMBER})[)\]])?"
    r"(?: (?P<unit>M|ms|GiB|MiB)\b|(?P<percent>%))?"
)
"""A printed number with its spread or interval: .4138 ± .0019; +.0124 (.0035 to .0223); 1,270."""

NO_RESULTS = re.compile(r"## (?:From the \w+ to the code|Files|The tree|At the limits)")
"""Headings of sections with equations of the sources, lists of files, or bounds of parameters."""

_LABELS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->|\b[EDW]-[\w.]+|\bthesis-[\w.]+|\(\d\.\d+[a-z]?\)|\[\d\.\d\]"
    r"|\b(?:search|row|those|InfoNCE|DCL|HCL|DPL|BCL|BNS) of \d\.\d(?: and \d\.\d)?"
    r"|\b(?:[Tt]ables?|[Ff]igures?|[Ss]ections?|[Aa]ppendix|Python) \d[\d.]*(?:(?:,| and| to| or) \d\.\d+)*"
)
"""Digits that are not values: code, addresses, tags of the errata, numbers of tables and equations."""

_LEFT_OUT = ("curve", "units", "params", "settings", "machine", "versions", "seconds")
"""Keys of a results file that are not results."""

_SCALES = {"M": (1e6,), "ms": (1.0, 1e-3), "GiB": (1.0, 2.0**30), "MiB": (1.0, 2.0**20), "%": (1.0, 1e-2)}


@dataclass(frozen=True)
class Quoted:
    """A number with its spread or interval, its line, and the artefacts of its scope."""

    numbers: tuple[str, ...]
    unit: str
    line: int
    artefacts: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.numbers)


@dataclass
class Artefacts:
    """Numbers of stored results, single ones and groups, cached by file."""

    root: Path
    _read: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)

    def groups(self, name: str) -> list[tuple[float, ...]]:
        if name not in self._read:
            path = self.root / RESULTS / name
            text = path.read_text(encoding="utf-8")
            groups = _of_json(json.loads(text)) if path.suffix == ".json" else _of_text(text)
            self._read[name] = sorted({tuple(map(abs, group)) for group in groups})
        return self._read[name]

    def have(self, quoted: Quoted) -> bool:
        """Whether numbers of one artefact of the scope round to the printed ones."""
        return any(
            agree(quoted.numbers, group, scale)
            for scale in _SCALES.get(quoted.unit, (1.0,))
            for name in quoted.artefacts
            for group in self._near(name, _value(quoted.numbers[0]) * scale, _half(quoted.numbers[0]) * scale)
            if len(group) == len(quoted.numbers)
        )

    def _near(self, name: str, value: float, slack: float) -> Iterator[tuple[float, ...]]:
        """Groups with the first number within ``slack`` of ``value``."""
        groups = self.groups(name)
        for group in groups[bisect_left(groups, (value - slack,)) :]:
            if group[0] > value + slack:
                return
            yield group

    def named(self, text: str, comment: bool = False) -> list[str]:
        """The artefacts, by their names below ``benchmarks/results``, that a text mentions."""
        names = [f"{stem}.{form}" for stem, form in re.findall(rf"{RESULTS}/([\w./-]+)\.(\w+)\b", text)]
        for script, only in re.findall(r"\b(\w+)\.py(?: --only (\w+))?", text):
            stem = f"{script}-{only.lower()}" if only else script
            names.append(f"{stem}.md" if self._is(f"{stem}.md") else f"{stem}.json")
        for word in re.findall(r"reproduce ([a-z][\w.]*-[\w.]+)", text):
            names += self._published(word)
        for word in re.search(r"<!-- from:(.*?)-->", text)[1].split() if comment else ():
            names += self._published(word) or [word if self._is(word) else f"published/{word}"]
        found = [re.sub(r"\.(svg|png)$", ".md", name) for name in names]
        return [name for name in dict.fromkeys(found) if self._is(name) or comment]

    def _published(self, name: str) -> list[str]:
        folder = self.root / RESULTS / "published"
        return sorted(f"published/{file.name}" for file in folder.glob(f"{name}*.md") if _is_of(file.stem, name))

    def _is(self, name: str) -> bool:
        return (self.root / RESULTS / name).is_file()


def _is_of(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}-")


def agree(printed: Sequence[str], numbers: Sequence[float], scale: float = 1.0) -> bool:
    """Whether printed numbers equal these to the last printed digit, ignoring signs."""
    return all(abs(_value(text) - abs(number) / scale) <= _half(text) for text, number in zip(printed, numbers))


def _value(text: str) -> float:
    return abs(float(text.replace(",", "")))


def _half(text: str) -> float:
    """Half of a unit in the last digit that counts, and what floats lose: of 467,000 three zeros do not count, of 1,000
    two."""
    place = -len(text.partition(".")[2])
    if "," in text and not place:
        digits = text.replace(",", "").lstrip("+-")
        place = min(len(digits) - len(digits.rstrip("0")), 3, len(digits) - 2)
    return 0.5 * 10.0**place * (1 + 1e-6) + 1e-12


def quoted(text: str, artefacts: Artefacts) -> Iterator[Quoted]:
    """Every number of a page that must be in an artefact. In scopes without artefacts, whole numbers do not count."""
    scopes = _scopes(text, artefacts)
    row_of: tuple[str, ...] = ()
    tables = ""
    fenced = skipped = False
    for number, line in enumerate(text.splitlines(), 1):
        scope = scopes[number - 1]
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            skipped = bool(NO_RESULTS.fullmatch(line))
        if fenced or skipped or line.startswith("    "):
            continue
        cells = line.strip().strip("|").split("|") if line.lstrip().startswith("|") else None
        if cells is None:
            row_of, tables = (), ""
            yield from _numbers(line, number, scope, whole=False)
            continue
        first = cells[0].strip()
        tables = first if re.fullmatch(r"\d\.\d+(, \d\.\d+)*", first) else tables if not first else ""
        if own := artefacts.named(line):
            row_of = tuple(own)
        elif not any(cell.strip() == '"' for cell in cells):
            row_of = ()
        of = row_of or _of_tables(tables, scope) or scope
        if not tables:
            yield from _numbers(cells[0], number, of, whole=False)
        for cell in cells[1:]:
            yield from _numbers(cell, number, of, whole=bool(of))


def _of_tables(tables: str, scope: tuple[str, ...]) -> tuple[str, ...]:
    ids = [f"thesis-{one}" for one in tables.split(", ")] if tables else []
    return tuple(name for name in scope for one in ids if _is_of(Path(name).stem, one))


def _scopes(text: str, artefacts: Artefacts) -> list[tuple[str, ...]]:
    """The artefacts of each line's scope."""
    scopes: list[list[str]] = [[]]
    of_line = []
    fenced = False
    for line in text.splitlines():
        comment = line.startswith("<!-- from:")
        fenced ^= line.startswith("```")
        if comment or (line.startswith("#") and not fenced):
            scopes.append([])
        if not line.lstrip().startswith("|") or not artefacts.named(line):
            scopes[-1] += artefacts.named(line, comment)
        of_line.append(len(scopes) - 1)
    return [tuple(dict.fromkeys(scopes[at])) for at in of_line]


def _numbers(text: str, line: int, artefacts: tuple[str, ...], *, whole: bool) -> Iterator[Quoted]:
    text = _LABELS.sub(" ", text)
    unit = ""  # in 2.31 / 2.60 M both are millions
    for match in reversed(list(GROUP.finditer(text))):
        numbers = tuple(match[name] for name in ("first", "spread", "low", "high") if match[name])
        unit = match["unit"] or match["percent"] or unit * (text[match.end() :].lstrip().startswith("/"))
        if re.search(r"[.,]|\d\d" if whole else r"[.,]", numbers[0]):
            yield Quoted(numbers, unit, line, artefacts)


def _of_text(text: str) -> Iterator[tuple[float, ...]]:
    for match in GROUP.finditer(text):
        numbers = tuple(
            float(match[name].replace(",", "")) for name in ("first", "spread", "low", "high") if match[name]
        )
        yield numbers
        if match["low"]:  # a page may divide the two in either order
            yield numbers[0], *numbers[:0:-1]
        yield from ((one,) for one in numbers)


def _of_json(value: Any) -> Iterator[tuple[float, ...]]:
    """Numbers, also in text, and mean and standard deviation over seeds; of a benchmark only the rows."""
    if isinstance(value, dict):
        if "rows" in value and "samples" in value:
            value = {name: value[name] for name in ("rows", "notes")}
        if value.get("ratio"):
            yield (1 / value["ratio"],)
        if isinstance(value.get("mean"), float) and isinstance(value.get("sd"), float):
            yield value["mean"], value["sd"]
        for key, one in value.items():
            if key not in _LEFT_OUT:
                yield from _of_text(key)
                yield from _of_json(one)
    elif isinstance(value, list):
        yield from _over_runs(value)
        for one in value:
            yield from _of_json(one)
    elif isinstance(value, str):
        yield from _of_text(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield (float(value),)


def _over_runs(runs: list[Any]) -> Iterator[tuple[float, float]]:
    """Mean and standard deviation of numbers, or of each measure of runs, by model."""
    kinds: dict[Any, list[Any]] = {}
    for run in runs:
        kinds.setdefault(run.get("loss") if isinstance(run, dict) else None, []).append(run)
    for group in kinds.values():
        measures = [run.get("test", run) if isinstance(run, dict) else {"": run} for run in group]
        for name in measures[0]:
            values = [one.get(name) for one in measures]
            if len(values) > 1 and all(isinstance(one, int | float) for one in values):
                yield fmean(values), stdev(values)
                yield (fmean(values),)
