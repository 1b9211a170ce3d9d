"""How far the conversion of images is, kept next to its arrays, so that a killed one is continued."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAVE_SECONDS = 10.0
"""Interval at which the progress is stored and printed."""


@dataclass
class PartProgress:
    """The first ``done`` of ``total`` images of a part are decoded; ``faults``: reasons of those that cannot be."""

    total: int
    done: int = 0
    faults: dict[int, str] = field(default_factory=dict)


class Progress:
    """Progress of the parts of one dataset. ``file`` has that of an earlier process; None keeps nothing."""

    def __init__(self, file: Path | None = None, name: str = "") -> None:
        self._file = file
        self._name = name
        self._parts: dict[str, PartProgress] = {}
        self._begun = self._saved = time.monotonic()
        self._decoded = 0
        if file is not None and file.exists():
            for part, values in json.loads(file.read_text()).items():
                faults = {int(index): reason for index, reason in values["faults"].items()}
                self._parts[part] = PartProgress(values["total"], values["done"], faults)

    def has(self, part: str) -> bool:
        """Whether an earlier process has begun the part."""
        return part in self._parts

    def begin(self, part: str, total: int) -> PartProgress:
        """The progress of a part, from which to go on."""
        return self._parts.setdefault(part, PartProgress(total))

    def advance(self, part: str, images: Any, count: int, faults: dict[int, str]) -> None:
        """Count decoded images; now and then flush the array ``images``, store how far it is, and print it."""
        own = self._parts[part]
        own.done += count
        own.faults |= faults
        self._decoded += count
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save(images)
            left = (own.total - own.done) * (time.monotonic() - self._begun) / self._decoded
            counted = f"{own.done:,} of {own.total:,} images of {part}"
            print(f"Converting {self._name}: {counted}, about {left / 60:.0f} min left", file=sys.stderr, flush=True)

    def save(self, images: Any) -> None:
        """Store the progress, after what it counts is on disk."""
        self._saved = time.monotonic()
        if self._file is None:
            return
        if hasattr(images, "flush"):
            images.flush()
        partial = self._file.with_name(f"{self._file.name}.part")
        partial.write_text(json.dumps({part: vars(own) for part, own in self._parts.items()}))
        partial.replace(self._file)
