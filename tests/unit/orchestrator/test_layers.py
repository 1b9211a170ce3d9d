"""Rules that import-linter cannot check: packages loaded at run time, and callers of functions."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from workloads.catalog import BUILT_IN, catalog

ROOT = Path(__file__).parents[3]
PACKAGES = ("orchestrator", "workloads", "search_spaces")
HEAVY = ("torch", "numpy", "pandas", "pyarrow", "ray", "mlflow", "optuna", "matplotlib", "transformers")

LIGHT = {
    "import workloads": (*HEAVY, "typer", "pydantic"),
    "import workloads.contract, workloads.catalog, workloads.data, workloads.seeding": (*HEAVY, "typer"),
    "from workloads.catalog import catalog; [entry.load_params() for entry in catalog().values()]": (*HEAVY, "typer"),
    "from workloads.catalog import catalog; [entry.load_published() for entry in catalog().values()]": (
        *HEAVY,
        "typer",
    ),
    "import orchestrator": (*HEAVY, "typer", "pydantic"),
    "import orchestrator.cli.app": (*HEAVY, "pydantic", "yaml"),
    "import orchestrator.sweeps.request, orchestrator.cluster.preflight": HEAVY,
    "import orchestrator.storage.records, orchestrator.cli.describe": HEAVY,
}
"""Statements that run before a user sees any output, and the packages that they must not load."""

PROBE = """
import json, sys
statement, heavy = sys.argv[1], json.loads(sys.argv[2])
exec(statement)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} & set(heavy))))
"""


def loaded(statement: str, names: tuple[str, ...]) -> list[str]:
    """Which of these packages a new process has loaded after the statement."""
    words = [sys.executable, "-c", PROBE, statement, json.dumps(names)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("statement", LIGHT)
def test_import_loads_no_heavy_packages(statement: str) -> None:
    assert loaded(statement, LIGHT[statement]) == []


@cache
def sources() -> list[tuple[str, ast.Module]]:
    """Every source file of the project by its path, parsed."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())) for file in files]


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def imports(tree: ast.Module) -> set[str]:
    """Every module that is imported anywhere in a file, with the names that are imported from it."""
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def calls(tree: ast.Module) -> list[tuple[str, ast.Call]]:
    """Every call by its dotted name, a call on another expression by the attributes only."""
    return [(dotted(node.func), node) for node in nodes(tree) if isinstance(node, ast.Call)]


def dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(names)])


def test_source_scan_finds_imports_and_calls() -> None:
    tree = ast.parse("def f():\n    from torch import distributed as d\n    import pickle\n    ray.train.report({})\n")
    assert {"torch.distributed", "pickle"} <= imports(tree)
    assert [name for name, _ in calls(tree)] == ["ray.train.report"]


@pytest.mark.slow
def test_only_two_modules_import_torch_distributed() -> None:
    importers = {
        path for path, tree in sources() if any(name.startswith("torch.distributed") for name in imports(tree))
    }
    assert importers == {"workloads/distributed.py", "workloads/testing_distributed.py"}


@pytest.mark.parametrize(("name", "place"), [("ray.train.report", "orchestrator/runs/train.py")])
def test_ray_train_report_is_called_from_one_module(name: str, place: str) -> None:
    assert {path for path, tree in sources() if any(called == name for called, _ in calls(tree))} == {place}


def test_among_driver_packages_only_winner_imports_the_report_package() -> None:
    """Of sweeps, only the end uses a view, to write the report. A search or a run uses none."""
    drivers = ("orchestrator/sweeps/", "orchestrator/runs/", "orchestrator/search/")
    importers = {
        path
        for path, tree in sources()
        if path.startswith(drivers) and any(name.startswith("orchestrator.report") for name in imports(tree))
    }
    assert importers == {"orchestrator/sweeps/winner.py"}


def test_imports_between_modules_have_no_cycle() -> None:
    """Imports within functions and for types are included. A package's own ``__init__`` is not counted."""
    trees = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): tree for path, tree in sources()}
    imported = {name: imports(tree) & trees.keys() - {name} for name, tree in trees.items()}
    for name, tree in trees.items():  # "from package import module" needs the module, not the package
        packages = {
            node.module
            for node in nodes(tree)
            if isinstance(node, ast.ImportFrom) and all(f"{node.module}.{alias.name}" in trees for alias in node.names)
        }
        imported[name] -= packages
    while leaves := [name for name, needs in imported.items() if not needs & imported.keys()]:
        for name in leaves:
            del imported[name]
    while tops := imported.keys() - set().union(*imported.values()):
        for name in tops:
            del imported[name]
    assert {name: needs & imported.keys() for name, needs in imported.items()} == {}


def test_packages_of_the_orchestrator_import_each_other_in_at_most_110_pairs() -> None:
    pairs = set()
    for path, tree in sources():
        package, *parts = path.removesuffix(".py").split("/")
        if package == "orchestrator" and parts != ["__init__"]:
            targets = (name.split(".")[1] for name in imports(tree) if name.startswith("orchestrator."))
            pairs |= {(parts[0], target) for target in targets if target != parts[0]}
    assert len(pairs) <= 110, sorted(pairs)


def test_only_the_image_archive_reader_imports_pickle() -> None:
    """It reads CIFAR's own archives, and refuses every name except those of arrays."""
    pickling = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert {path for path, tree in sources() if imports(tree) & pickling} == {"workloads/data/images/archives.py"}
    for path, tree in sources():
        for name, call in calls(tree):
            if name in ("torch.load", "torch.save"):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert keywords.get("weights_only") == "True", f"{path}: {ast.unparse(call)}"


def test_workloads_do_not_import_each_other() -> None:
    names = set(catalog())
    for path, tree in sources():
        package, _, rest = path.partition("/")
        owner = rest.partition("/")[0]
        if package == "workloads" and owner in names:
            others = {f"workloads.{name}" for name in names - {owner}}
            assert not imports(tree) & others, path


def test_orchestrator_does_not_import_workloads_of_the_catalog() -> None:
    names = {f"workloads.{name}" for name in catalog()}
    for path, tree in sources():
        if path.startswith("orchestrator/"):
            found = {".".join(name.split(".")[:2]) for name in imports(tree)}
            assert not found & names, path


def test_the_import_contract_lists_the_built_in_workloads() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (independent,) = (contract["modules"] for contract in contracts if contract["type"] == "independence")
    assert sorted(independent) == sorted(f"workloads.{name}" for name in BUILT_IN)
    (spaces,) = (contract for contract in contracts if contract.get("source_modules") == ["search_spaces"])
    forbidden = {module for module in spaces["forbidden_modules"] if module.startswith("workloads.")}
    assert forbidden == {f"workloads.{name}.workload" for name in BUILT_IN}
