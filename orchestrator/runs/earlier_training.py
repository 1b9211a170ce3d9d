"""What the weights that a run starts from (``init=``, ``--from``) have learned from before, in a file next to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.plan import Plan
from orchestrator.provenance import private_files
from orchestrator.storage import disk

FILE = "learnt.json"
"""Name of the file. ``trained`` lists the datasets, each with its ``fingerprint``, the parameters of its ``split``, or
null, and whether the model was ``refitted``, with the validation part. Earlier versions wrote the ``fingerprint`` of a
refit alone, or null."""

REFITTED = (
    "These weights were refitted on train + validation of this dataset: values on validation are too good from epoch 0 "
    "on, and the gates better and guard refuse them. Start from a run with refit=false to compare"
)

OTHER_SPLIT = (
    "These weights were trained on another split of this dataset: they may have learned from its validation and test "
    "parts, so that values on both are too good, and the gates better and guard refuse them. Start from a run with the "
    "same split to compare"
)

_SPLIT = ("split", "dataset_noise", "dataset_min_rating")
"""Prefixes of the parameters that say which examples of a dataset are in its validation and test parts."""


def warning(weights: Path, fingerprint: str | None, params: Mapping[str, Any], plan: Plan) -> str | None:
    """The warning about ``weights``, a folder, that have learned from what a run evaluates on; None without any.

    Another split holds out other examples, and a refit trains on the validation part.

    Args:
        weights: their folder.
        fingerprint: of the run's dataset, or None.
        params: with the parameters of the run's data.
        plan: the run's.
    """
    own = [one for one in trained(weights) if fingerprint is not None and one["fingerprint"] == fingerprint]
    if any(one["split"] not in (None, _split_of(params)) for one in own):
        return OTHER_SPLIT
    return REFITTED if plan.refit != "only" and any(one["refitted"] for one in own) else None


def trained(weights: Path) -> list[dict[str, Any]]:
    """The datasets that the weights in a folder have learned from, as in :data:`FILE`."""
    noted = private_files.read_json(weights / FILE) or {}
    refitted = noted.get("fingerprint")
    before = [{"fingerprint": refitted, "split": None, "refitted": True}] if refitted else []
    return list(noted.get("trained", before))


def note(
    weights: Path,
    fingerprint: str | None,
    spec: Mapping[str, Any],
    refitted: bool,
    before: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write next to ``weights`` what the run of ``spec``, empty if it is unknown, and those ``before`` trained on."""
    split = _split_of(spec["params"]) if spec else None
    own = {"fingerprint": fingerprint, "split": split, "refitted": refitted}
    disk.write_json(weights / FILE, {"trained": [*before, own]})


def _split_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a split. Those that are unset or 0 are left out: old specs lack parameters added since."""
    return {name: value for name, value in params.items() if name.startswith(_SPLIT) and value}
