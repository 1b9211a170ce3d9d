"""The thesis' tables in README and docs/results/recommender.md, from the stored results. Run it to rewrite both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from tests.support.readme_tree import ROOT

FOLDER = ROOT / "benchmarks" / "results" / "published"
PAGE = "docs/results/recommender.md"
DATASET = "ml-100k"
BACKBONES = {"mf": "MF", "lightgcn": "LightGCN"}
MEASURE = "ndcg_at_20"
TABLES = ("4.2", "4.3", "4.4", "5.2", "5.3", "6.3")
README_COLUMNS = {
    "BPR": ("BPR", ("5.2", "5.3")),
    "DNS": ("DNS", ("4.2",)),
    "BNS": ("BNS", ("4.2",)),
    "InfoNCE": ("InfoNCE", ("5.2", "6.3")),
    "DCL": ("DCL", ("5.2", "6.3")),
    "HCL": ("HCL", ("5.2", "6.3")),
    "DPL": ("DPL", ("5.2", "5.3")),
    "DPL, hard": ("DPL with hard samples", ("5.3",)),
    "BCL": ("BCL", ("6.3",)),
}
"""A column's method, and the tables that have it; the first with a value counts."""
SIGNIFICANT = 0.05

_FILE = re.compile(
    r"thesis-(?P<table>\d\.\d)-(?P<dataset>ml-100k|ml-1m|lastfm|synthetic)-(?P<backbone>mf|lightgcn)(?:-(?P<rest>.+))?"
)
_CELL = re.compile(r"(?P<mean>[\d.]+) ± (?P<spread>[\d.]+)(?: / (?P<published>[\d.]+))?")
_PAIR = re.compile(r"^- (?P<better>.+) > (?P<worse>.+) by [\d.]+ \(.+\), p (?:=|<) (?P<p>\S+)$", re.MULTILINE)
_ORDER = re.compile(r"^- published order: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Value:
    """Mean and standard deviation over seeds, and the published value if there is one."""

    mean: float
    spread: float
    published: float | None

    @property
    def missed_by(self) -> float:
        return max((self.published or 0.0) - self.mean, 0.0)


@dataclass(frozen=True)
class Stored:
    """A stored table: its place in the source, its values by method and its tested pairs."""

    name: str
    table: str
    dataset: str
    backbone: str
    trials: str
    values: dict[str, Value]
    pairs: tuple[tuple[str, str, float], ...]
    order: str


def stored(file: Path) -> Stored:
    """The stored table of a file of ``benchmarks/results/published``."""
    name = _FILE.fullmatch(file.stem)
    assert name, file
    text = file.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line[:2] == "| "
    ]
    header, _, *body = rows
    column = header.index(MEASURE) if MEASURE in header else None
    values = {row[0]: _value(row[column]) for row in body} if column else {}
    order = _ORDER.search(text)
    trials = re.search(r"(\d+)-trials$", name["rest"] or "")
    return Stored(
        file.name,
        name["table"],
        name["dataset"],
        name["backbone"],
        f"{trials[1]} trials" if trials else "",
        values,
        tuple((pair["better"], pair["worse"], float(pair["p"])) for pair in _PAIR.finditer(text)),
        order[1] if order else "",
    )


def _value(cell: str) -> Value:
    match = _CELL.fullmatch(cell)
    assert match, cell
    published = match["published"]
    return Value(float(match["mean"]), float(match["spread"]), float(published) if published else None)


def everything() -> list[Stored]:
    """All stored tables of rankings, in the order of the source."""
    return [stored(file) for file in sorted(FOLDER.glob("thesis-*.md")) if _FILE.fullmatch(file.stem)]


def values_table() -> str:
    """Every row of ``TABLES`` on ``DATASET``, one pair of columns for each backbone."""
    rows: dict[tuple[str, str], dict[str, Value]] = defaultdict(dict)
    for one in everything():
        if one.dataset == DATASET and one.table in TABLES:
            for method, value in one.values.items():
                label = f"{method} ({one.trials})" if one.trials else method
                rows[one.table, label][one.backbone] = value
    head = "".join(f" {name} | published |" for name in BACKBONES.values())
    lines = [f"| table | method |{head}", "| --- " * (2 + 2 * len(BACKBONES)) + "|"]
    last = ""
    for (table, method), of_backbones in sorted(rows.items(), key=lambda item: item[0][0]):
        cells = "".join(page_cells(of_backbones.get(backbone)) for backbone in BACKBONES)
        lines.append(f"| {table if table != last else ''} | {method} |{cells}")
        last = table
    return "\n".join([_sources(f"thesis-{table}-{DATASET}" for table in TABLES), *lines])


def page_cells(value: Value | None) -> str:
    if value is None:
        return " | |"
    text = f"{_short(value.mean)} ± {_short(value.spread)}"
    published = "-" if value.published is None else _short(value.published)
    if value.missed_by > value.spread:
        text += f", **{_short(value.missed_by, 3)} below**"
    elif value.missed_by:
        text += " (within the spread)"
    return f" {text} | {published} |"


def _short(value: float, digits: int = 4) -> str:
    """Half rounds up: these values are stored with four digits."""
    return str(Decimal(f"{value:.4f}").quantize(Decimal(10) ** -digits, ROUND_HALF_UP)).lstrip("0")


def _sources(names: Iterator[str]) -> str:
    return f"<!-- from: {' '.join(names)} -->"


def readme_table() -> str:
    """One row for each backbone; a published value that was not reached is bold."""
    lines = [f"| | {' | '.join(README_COLUMNS)} |", "| --- " * (1 + len(README_COLUMNS)) + "|"]
    for backbone, title in BACKBONES.items():
        of_backbone = [
            one for one in everything() if (one.dataset, one.backbone, one.trials) == (DATASET, backbone, "")
        ]
        found = {(one.table, method): value for one in of_backbone for method, value in one.values.items()}
        cells = [
            next(readme_cell(found[table, method]) for table in tables if (table, method) in found)
            for method, tables in README_COLUMNS.values()
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    named = sorted({table for _, tables in README_COLUMNS.values() for table in tables})
    return "\n".join([_sources(f"thesis-{table}-{DATASET}" for table in named), *lines])


def readme_cell(value: Value) -> str:
    if value.published is None:
        return f"{_short(value.mean, 3)} / -"
    published = _short(value.published, 3)
    return f"{_short(value.mean, 3)} / {f'**{published}**' if value.missed_by else published}"


def pairs_table() -> str:
    """The tested pairs of each stored table: those that differ, and those that do not, with their p."""
    lines = ["| table | order of the source | different | not significantly different |", "| --- | --- | --- | --- |"]
    for one in everything():
        if not one.pairs:
            continue
        differ: dict[str, list[str]] = defaultdict(list)
        same = []
        for better, worse, p in one.pairs:
            if p < SIGNIFICANT:
                differ[_name(better)].append(_name(worse))
            else:
                same.append(f"{_name(better)}, {_name(worse)} (p = {_short(p, 2)})")
        title = one.name.removeprefix("thesis-").removesuffix(".md")
        groups = [f"{better} > {', '.join(worse)}" for better, worse in differ.items()]
        link = f"[{title}](../../benchmarks/results/published/{one.name})"
        lines.append(f"| {link} | {_escaped(one.order)} | {'<br>'.join(groups)} | {'<br>'.join(same)} |")
    return "\n".join([_sources(one.name for one in everything() if one.pairs), *lines])


def _name(method: str) -> str:
    """A method's name without a comma, which separates methods here, and without a bar."""
    first, _, rest = method.partition(", ")
    return _escaped(f"{first} ({rest})" if rest else first)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


BLOCKS = {
    ("README.md", "thesis"): readme_table,
    (PAGE, "thesis"): values_table,
    (PAGE, "pairs"): pairs_table,
}


def page(text: str, name: str, block: str) -> str:
    """The page with its current block of that name."""
    begin, end = f"<!-- {name}: python -m tests.support.thesis_tables -->", f"<!-- end of {name} -->"
    head, found, rest = text.partition(begin)
    assert found, name
    return f"{head}{begin}\n{block}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for (file, name), block in BLOCKS.items():
        (ROOT / file).write_text(page((ROOT / file).read_text(), name, block()))
