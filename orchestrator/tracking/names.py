"""What MLflow takes as a name and as a value, and how ours are made to fit, visibly and the same every time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 8000

_REFUSED = re.compile(r"[^/\w.\- :]")


class Names:
    """Our names to MLflow's, one to one: ``recall@10`` is ``recall_at_10`` unless another name is that already."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._owner: dict[str, str] = {}

    def give(self, names: Iterable[str]) -> dict[str, str]:
        """MLflow's name for each of ours. Names that fit as they are keep theirs, wherever they stand."""
        names = list(names)
        for name in sorted(names, key=lambda name: fitting(name) != name):
            if name not in self._given:
                theirs = fitting(name)
                if theirs in self._owner:
                    theirs = _marked(theirs, name)
                self._given[name], self._owner[theirs] = theirs, name
        return {name: self._given[name] for name in names}

    def changed(self) -> dict[str, str]:
        """The names that had to be changed, and to what."""
        return {ours: theirs for ours, theirs in self._given.items() if ours != theirs}


def fitting(name: str) -> str:
    """The nearest name that MLflow takes: letters, digits, ``_ - . :`` and space, a plain relative path, 250 long."""
    clean = _REFUSED.sub("_", name.replace("@", "_at_"))
    clean = "/".join(part for part in clean.split("/") if part not in ("", ".", "..")) or "_"
    if clean.startswith(".."):
        clean = f"_{clean}"
    return clean if len(clean) <= MAX_NAME else _marked(clean, name)


def fitting_param(value: str) -> str:
    """A parameter's value, cut where MLflow would cut it without a word."""
    return _cut(value, MAX_PARAM, "... (whole value in spec.json)")


def fitting_tag(value: str) -> str:
    """A tag's value, cut where MLflow would cut it without a word."""
    return _cut(value, MAX_TAG, f"... (cut, {len(value)} characters)")


def _cut(value: str, limit: int, note: str) -> str:
    return value if len(value) <= limit else value[: limit - len(note)] + note


def _marked(theirs: str, ours: str) -> str:
    """Apart from all others by a digest of our name."""
    mark = "-" + hashlib.sha256(ours.encode()).hexdigest()[:8]
    return theirs[: MAX_NAME - len(mark)] + mark
