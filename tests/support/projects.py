"""Install a third-party project for one test: on the path, with the metadata that pip would write."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.provenance import record
from orchestrator.runs import model_upload
from workloads import catalog

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "linreg"


@contextmanager
def installed(project: Path, metadata: Path) -> Iterator[None]:
    """Make the project importable, with the entry points of its ``pyproject.toml``."""
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    folder = metadata / f"{about['name']}-{about['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    groups = about["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in of.items()) for group, of in groups]
    (folder / "entry_points.txt").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project))
        patch.syspath_prepend(str(metadata))
        before = _forget(about["name"])
        yield
    _forget(about["name"])
    sys.modules.update(before)


def _forget(name: str) -> dict[str, ModuleType]:
    """Unload the modules of a package."""
    modules = {known: sys.modules.pop(known) for known in list(sys.modules) if known.partition(".")[0] == name}
    importlib.invalidate_caches()
    for cached in (catalog.offered, model_upload._installed, record.packages):
        cached.cache_clear()
    return modules
