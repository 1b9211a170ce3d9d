"""Files of an attacker: a pickle and Python files that run code, which creates a canary file."""

from __future__ import annotations

import pickle
from pathlib import Path


class Bomb:
    """Creates the file ``canary`` when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


def bomb(canary: Path) -> bytes:
    return pickle.dumps(Bomb(canary))


def source(canary: Path, rest: str = "") -> str:
    """Python code that creates the file ``canary`` when it is imported."""
    return f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n{rest}\n"
