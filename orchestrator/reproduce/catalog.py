"""The published tables, figures and computations of all workloads in the catalog, by id."""

from __future__ import annotations

import re
from functools import cache

from orchestrator.errors import UserError, one_line
from workloads.catalog import catalog, package
from workloads.published import Published, Table


@cache
def all_published() -> dict[str, Published]:
    """All published results by id: tables first, then figures and computations, each in natural order.

    Leaves out third-party packages that cannot be loaded, see :func:`broken`. Raises UserError if two workloads use
    the same id.
    """
    published: dict[str, Published] = {}
    faults = broken()
    for name, entry in catalog().items():
        for one in () if name in faults else entry.load_published():
            if one.id in published:
                raise UserError(f"Two workloads publish {one.id}, one of them is {name}", fix="Rename one of the two")
            published[one.id] = one
    return dict(sorted(published.items(), key=lambda item: (not isinstance(item[1], Table), _natural(item[0]))))


def sources() -> list[str]:
    """Sources with several published results, by the first word of their ids: ``thesis``."""
    return [source for source in dict.fromkeys(map(_source, all_published())) if len(of_source(source)) > 1]


def of_source(source: str) -> list[str]:
    """The ids of a source's results."""
    return [name for name in all_published() if _source(name) == source]


def _source(name: str) -> str:
    return name.partition("-")[0]


def broken() -> dict[str, str]:
    """Errors of third-party packages whose published results cannot be loaded, by the name of the workload."""
    errors = {}
    for name, entry in catalog().items():
        if package(name) is not None:
            try:
                entry.load_published()
            except Exception as error:  # a third-party module may raise anything, and must not affect others
                errors[name] = one_line(error)
    return errors


def _natural(name: str) -> list[tuple[str, int]]:
    """Sort key that compares numbers in a name as numbers: 6.9 before 6.10."""
    return [(word, int(number or 0)) for word, number in re.findall(r"([^0-9]*)([0-9]*)", name)]
