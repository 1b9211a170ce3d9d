"""What is published, by id: the tables, figures and computations of every workload in the catalog."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from workloads.catalog import catalog

if TYPE_CHECKING:
    from workloads.published import Published


@cache
def known() -> dict[str, Published]:
    """By id, in the order of the catalog. Raises UserError where two workloads use one id."""
    found: dict[str, Published] = {}
    for name, entry in catalog().items():
        for one in entry.load_published():
            if one.id in found:
                raise UserError(f"Two workloads publish {one.id}, one of them is {name}", fix="Rename one of the two")
            found[one.id] = one
    return found
