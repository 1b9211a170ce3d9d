"""Names and values that MLflow accepts, and a fixed conversion of ours to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 8000

_REFUSED = re.compile(r"[^/\w.\- :]")


class Names:
    """One-to-one map of our names to MLflow's: ``recall@10`` becomes ``recall_at_10`` unless that name is taken."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._owner: dict[str, str] = {}

    def give(self, names: Iterable[str]) -> dict[str, str]:
        """MLflow's name for each of ours. Valid names are unchanged, whatever their position in ``names``."""
        names = list(names)
        for name in sorted(names, key=lambda name: fitting(name) != name):
            if name not in self._given:
                theirs = fitting(name)
                if theirs in self._owner:
                    theirs = _marked(theirs, name)
                self._given[name] = theirs
                self._owner[theirs] = name
        return {name: self._given[name] for name in names}

    def changed(self) -> dict[str, str]:
        """The names that differ in MLflow, as ``{ours: theirs}``."""
        return {ours: theirs for ours, theirs in self._given.items() if ours != theirs}


def fitting(name: str) -> str:
    """The nearest name that MLflow accepts: letters, digits, ``_ - . :``, spaces, a relative path, 250 characters."""
    clean = _REFUSED.sub("_", name.replace("@", "_at_"))
    clean = "/".join(part for part in clean.split("/") if part not in ("", ".", "..")) or "_"
    if clean.startswith(".."):
        clean = f"_{clean}"
    return clean if len(clean) <= MAX_NAME else _marked(clean, name)


def encodable(text: str) -> str:
    """Text that UTF-8 can encode: lone surrogates, as of an argument that could not be decoded, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def fitting_param(value: str) -> str:
    """A parameter's value, truncated with a note at MLflow's limit; MLflow would truncate it silently."""
    return _cut(value, MAX_PARAM, "... (whole value in spec.json)")


def fitting_tag(value: str) -> str:
    """A tag's value, truncated with a note at MLflow's limit; MLflow would truncate it silently."""
    return _cut(value, MAX_TAG, f"... (cut, {len(value)} characters)")


def _cut(value: str, limit: int, note: str) -> str:
    value = encodable(value)
    return value if len(value) <= limit else value[: limit - len(note)] + note


def _marked(theirs: str, ours: str) -> str:
    """``theirs`` made unique by a digest of our name."""
    mark = "-" + hashlib.sha256(encodable(ours).encode()).hexdigest()[:8]
    return theirs[: MAX_NAME - len(mark)] + mark
