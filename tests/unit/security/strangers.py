"""What a stranger would leave: a pickle that runs code, Python files that do, and the file by which it shows."""

from __future__ import annotations

import pickle
from pathlib import Path


class Bomb:
    """Unpickled, it leaves ``canary`` behind."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


def bomb(canary: Path) -> bytes:
    return pickle.dumps(Bomb(canary))


def source(canary: Path, rest: str = "") -> str:
    """Python that leaves ``canary`` behind when it is imported."""
    return f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n{rest}\n"
