"""Numbers of README and results pages are in the results files that the pages name, or are listed with a reason."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import growth_table, thesis_tables, trial_cost
from tests.support.quoted_numbers import RESULTS, Artefacts, Quoted, agree, quoted
from tests.support.readme_tree import ROOT

PAGES = (
    "README.md",
    *(
        str(file.relative_to(ROOT))
        for pattern in ("docs/results/*.md", "docs/guide/*.md", "workloads/*/README.md")
        for file in sorted(ROOT.glob(pattern))
    ),
)
RESULT_PAGES = tuple(page for page in PAGES if page.startswith("docs/results/"))
LISTED: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "quoted.toml").read_text())["page"]
ARTEFACTS = Artefacts(ROOT)


@cache
def lines(page: str) -> list[str]:
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


@cache
def numbers(page: str) -> list[Quoted]:
    return list(quoted("\n".join(lines(page)), ARTEFACTS))


def entries(page: str, one: Quoted) -> list[dict[str, Any]]:
    """The listed entries of a number."""
    line = lines(page)[one.line - 1]
    return [
        entry for entry in LISTED
        if entry["file"] == page and entry["line"] in line and set(one.numbers) <= set(entry["numbers"])
    ]  # fmt: skip


def unexplained(page: str, text: str) -> list[str]:
    """The numbers of a page that are neither in an artefact nor listed."""
    return [
        f"{page}:{one.line}: {one}"
        for one in quoted(text, ARTEFACTS)
        if not ARTEFACTS.have(one) and not entries(page, one)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_stored_or_listed_with_a_reason(page: str) -> None:
    wrong = unexplained(page, "\n".join(lines(page)))
    assert not wrong, (
        "name the results file with <!-- from: FILE -->, correct the number, or list it in tests/quoted.toml"
    )


def test_every_listed_number_is_on_its_page_and_follows_from_stored_ones() -> None:
    for entry in LISTED:
        page = entry["file"]
        here = [one for one in numbers(page) if entry in entries(page, one)]
        assert {text for one in here for text in one.numbers} == set(entry["numbers"]), f"stale: {entry}"
        assert entry.get("why") or entry.get("is"), entry
        assert all(not ARTEFACTS.have(one) for one in here), f"stored, so not to be listed: {entry}"
        if "is" not in entry:
            continue
        words = re.fullmatch(r"([\d.,]+) ([-+/]) ([\d.,]+)", entry["is"])
        assert words, entry
        for operand in (words[1], words[3]):
            assert entry.get("why") or ARTEFACTS.have(Quoted((operand,), "", 0, here[0].artefacts)), entry
        first, second = (float(operand.replace(",", "")) for operand in (words[1], words[3]))
        value = {"-": first - second, "+": first + second, "/": first / second if second else 0.0}[words[2]]
        assert agree(entry["numbers"], [value]), f"{entry['is']} is {value}: {entry}"


@pytest.mark.parametrize("page", RESULT_PAGES)
def test_results_page_marks_no_miss_without_its_size(page: str) -> None:
    assert "**below**" not in "\n".join(lines(page))


# The check of numbers itself


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (".4305 ± .0025", ".4305 ± .0013"),  # the spread of one row
        ("**.8614 ± .0025**", "**.8614 ± .0026**"),
        (".0029 | 1,236", ".0029 | 1,270"),
        ("+.050 (.033 to .067), p", "+.050 (.034 to .067), p"),  # an interval
        ("7,518 |", "7,519 |"),
        ("16,800 / 1,650", "16,900 / 1,650"),
        ("by .070 and", "by .076 and"),
    ],
)
def test_wrong_digit_on_a_results_page_is_reported(right: str, wrong: str) -> None:
    texts = {page: "\n".join(lines(page)) for page in RESULT_PAGES}
    with_it = [page for page, text in texts.items() if right in text]
    assert with_it
    assert all(unexplained(page, texts[page].replace(right, wrong, 1)) for page in with_it)


def test_most_wrong_last_digits_are_found() -> None:
    """The digits may occur by chance in another row, so some wrong digits are not found."""
    every = [one for page in RESULT_PAGES for one in numbers(page) if one.artefacts and ARTEFACTS.have(one)]
    changed = [Quoted((_next_digit(one.numbers[0]), *one.numbers[1:]), one.unit, 0, one.artefacts) for one in every]
    missed = sum(ARTEFACTS.have(one) for one in changed)
    assert missed < 0.35 * len(changed)
    together = [one for one in changed if len(one.numbers) > 1]
    assert sum(ARTEFACTS.have(one) for one in together) < 0.03 * len(together)


def _next_digit(text: str) -> str:
    return text[:-1] + str((int(text[-1]) + 3) % 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of a benchmark, a published table and a printed table."""
    (tmp_path / RESULTS / "published").mkdir(parents=True)
    row = {"what": "an epoch", "ours": 2_310_151.5, "theirs": 712_207.2, "ratio": 0.2438}
    bench = {"rows": [row], "samples": {"ours": [0.125]}, "notes": []}
    (tmp_path / RESULTS / "epoch.json").write_text(json.dumps(bench))
    (tmp_path / RESULTS / "published" / "thesis-9.1-mf.md").write_text("| BPR | 0.4138 ± 0.0019 / 0.3962 |")
    (tmp_path / RESULTS / "quality.md").write_text("by +0.0295 [-0.0406, -0.0184], p = 0.0002")
    (tmp_path / RESULTS / "quality.json").write_text(json.dumps({"values": [0.5, 0.7], "curve": [0.9]}))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`orchestrator reproduce thesis-9.1`: .4138 ± .0019, published .3962", []),
        ("`orchestrator reproduce thesis-9.1`: .4138 ± .0018", [".4138 .0018"]),
        ("`orchestrator reproduce thesis-9`: .4138", [".4138"]),  # another table
        ("`epoch.py`: 2,310,000, not 2,300,000 or 1,000", ["1,000", "2,300,000"]),
        ("nothing is named: .4138, table 4.2, E-4.16, `lr=.5`", [".4138"]),
        ("<!-- from: quality.md -->\nBCL by .030 (.018 to .041), p = .0002", []),
        ("<!-- from: quality.json -->\n.600 ± .141; 0.9", ["0.9"]),
        ("# A\n`benchmarks/epoch.py`\n# B\n2.31 M", ["2.31"]),  # a heading ends a scope
        ("| rate | M | ratio | by |\n| - | - | - | - |\n| a | 2.31 / 0.71 M | 4.1 | `epoch.py` |", []),
        ('| a | 2.32 M | 4.1 | `epoch.py` |\n| b | 2,310,000 | 0.125 | " |', ["2.32", "0.125"]),
        ("```\n.123\n```\n    .456\n## Files\n.789", []),
    ],
)
def test_page_numbers_that_no_named_result_contains_are_reported(folder: Path, text: str, wrong: list[str]) -> None:
    artefacts = Artefacts(folder)
    assert [str(one) for one in quoted(text, artefacts) if not artefacts.have(one)] == wrong


# Headers of result files


def test_every_published_result_has_its_command_its_commit_and_its_date() -> None:
    files = sorted((ROOT / RESULTS / "published").glob("*.md"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "`orchestrator reproduce " in text, file.name
        stored = r"^Stored in commit [0-9a-f]{7,12} on \d{4}-\d\d-\d\d; the values by seed were not stored\.$"
        assert re.search(stored + r"|^Written at \d{4}-\d\d-\d\dT\S+ by .+\.$", text, re.MULTILINE), file.name


def test_growth_table_matches_the_measured_costs() -> None:
    text = growth_table.PAGE.read_text()
    assert growth_table.page(text) == text, "run: python -m tests.support.growth_table"


@pytest.mark.parametrize(("file", "name"), thesis_tables.BLOCKS)
def test_thesis_tables_match_the_stored_results(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    block = thesis_tables.BLOCKS[file, name]()
    assert thesis_tables.page(text, name, block) == text, "run: python -m tests.support.thesis_tables"


@pytest.mark.parametrize(
    ("mean", "published", "cells", "pair"),
    [
        (0.4138, 0.3962, " .4138 ± .0021 | .3962 |", ".414 / .396"),
        (0.4138, None, " .4138 ± .0021 | - |", ".414 / -"),
        (0.4192, 0.4207, " .4192 ± .0021 (within the spread) | .4207 |", ".419 / **.421**"),
        (0.4115, 0.4182, " .4115 ± .0021, **.007 below** | .4182 |", ".412 / **.418**"),
    ],
)
def test_a_missed_value_is_marked(mean: float, published: float | None, cells: str, pair: str) -> None:
    value = thesis_tables.Value(mean, 0.0021, published)
    assert (thesis_tables.page_cells(value), thesis_tables.readme_cell(value)) == (cells, pair)


@pytest.mark.parametrize("name", trial_cost.BLOCKS)
def test_trial_cost_block_matches_the_measurements(name: str) -> None:
    text = "\n".join(lines(name)) + "\n"
    block = trial_cost.BLOCKS[name](json.loads(trial_cost.FILE.read_text()))
    assert trial_cost.page(text, block) == text, "run: python -m tests.support.trial_cost"


def test_measurement_with_busy_cores_is_not_quoted() -> None:
    samples = {trial_cost.RAY: [0.2], trial_cost.TUNE: [1.5], trial_cost.NESTED: [22.0]}
    about = {"samples": samples, "when": "2026-11-22T20:00:00", "machine": {"cores": 2}, "commit": "0123456789ab"}
    cores = {name: [0.1] for name in samples}
    quiet = {**about, "busy_cores": cores}
    row = "| on Ray, every report sent | 0.2 s | Tune function + MLflow callback 1.5 s | 7.5 |"
    assert "on Ray takes 0.2 s" in trial_cost.sentence(quiet)
    assert row in trial_cost.table(quiet)
    busy = {**about, "busy_cores": {**cores, trial_cost.TUNE: [0.9]}}
    assert "takes" not in trial_cost.sentence(busy)
    assert row not in trial_cost.table(busy)
