"""What is published, by id: the tables, figures and computations of every workload in the catalog."""

from __future__ import annotations

import re
from functools import cache

from orchestrator.errors import UserError, one_line
from workloads.catalog import catalog, package
from workloads.published import Published, Table


@cache
def known() -> dict[str, Published]:
    """By id: tables, then figures and computations, each in natural order. Raises UserError where two workloads use
    one id. What a package of others cannot load is left out, see :func:`broken`."""
    found: dict[str, Published] = {}
    faults = broken()
    for name, entry in catalog().items():
        for one in () if name in faults else entry.load_published():
            if one.id in found:
                raise UserError(f"Two workloads publish {one.id}, one of them is {name}", fix="Rename one of the two")
            found[one.id] = one
    return dict(sorted(found.items(), key=lambda item: (not isinstance(item[1], Table), _natural(item[0]))))


def broken() -> dict[str, str]:
    """Why the published tables of an installed package cannot be loaded, by the name of its workload."""
    found = {}
    for name, entry in catalog().items():
        if package(name) is not None:
            try:
                entry.load_published()
            except Exception as error:  # a stranger's module may raise anything, and is no other's trouble
                found[name] = one_line(error)
    return found


def _natural(name: str) -> list[tuple[str, int]]:
    """Numbers in a name count as numbers: 6.9 stands before 6.10."""
    return [(word, int(number or 0)) for word, number in re.findall(r"([^0-9]*)([0-9]*)", name)]
