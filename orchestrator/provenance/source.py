"""The code that runs: commit and uncommitted difference of its repositories, asked from git within a time limit."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator.provenance import package
from orchestrator.provenance.git import Git
from orchestrator.provenance.patch import fitting, new_file, sections
from orchestrator.provenance.scrub import scrub
from orchestrator.provenance.secret_files import SECRET_FILES, SECRET_FOLDERS, secret_file

SECONDS = 2.0
"""What all of git may take together: a start is not delayed longer by a repository however large."""

MAX_DIFF = 200_000
MAX_FILE = 50_000
MAX_NAMES = 200
"""Characters of a whole difference, bytes of one untracked file, names in a list."""

SUFFIXES = frozenset({
    ".py", ".pyi", ".pyx", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".sql", ".c", ".cc", ".cpp", ".h",
    ".hpp", ".cu", ".cuh", ".rs", ".proto", ".jinja",
})  # fmt: skip
"""Untracked files of these are source; others are named only."""

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--submodule=short", "--unified=3",
        "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """A repository as it stood. ``dirty`` is None where git was too slow to tell; ``diff`` applies to ``commit``.

    ``diff`` holds whole files, the untracked ones too, scrubbed; ``left_out`` says which it lacks, and why. ``package``
    is where in it the project lies that brings the workload, where that is somebody else's.
    """

    name: str
    commit: str | None
    branch: str | None = None
    url: str | None = None
    dirty: bool | None = None
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    diff: str = ""
    package: str | None = None

    def cut(self, limit: int) -> Source:
        """With a difference of at most ``limit`` characters: the files that fit."""
        if len(self.diff) <= limit:
            return self
        kept, left = fitting(sections(self.diff), limit)
        return replace(self, diff=kept, left_out=(*self.left_out, *left))


def capture(
    directory: Path, own: Path, apart: Sequence[Path] = (), workload: Path | None = None, seconds: float = SECONDS
) -> tuple[Source, ...]:
    """The repository around ``directory`` (``project``), the one that the package ``own`` is checked out from
    (``orchestrator``) and that of the code in the folder ``workload`` (``workload``), where there are any; one, where
    they are the same. Never raises.

    What lies below ``apart`` is no source: runs and their results.
    """
    deadline = time.monotonic() + seconds
    roots: dict[str, str] = {}
    if Git(own, deadline).text("ls-files", "--", "__init__.py"):  # tracked there, not merely installed below
        roots["orchestrator"] = Git(own, deadline).text("rev-parse", "--show-toplevel") or str(own)
    here = Git(directory, deadline)
    top = here.text("rev-parse", "--show-toplevel") or (str(directory) if here.text("rev-parse", "--git-dir") else "")
    if top and top != roots.get("orchestrator"):
        roots = {"project": top, **roots}
    theirs = ""
    if workload and Git(workload, deadline).text("ls-files", "--", "*.py"):
        theirs = Git(workload, deadline).text("rev-parse", "--show-toplevel")
        if theirs not in roots.values():
            roots["workload"] = theirs
    found = {root: _capture(name, Path(root), apart, deadline) for name, root in roots.items()}
    if workload and theirs:
        found[theirs] = replace(found[theirs], package=package.project(workload, Path(theirs)))
    return tuple(found.values())


def pack(sources: Sequence[Source], limit: int) -> str:
    """Sources as at most ``limit`` ASCII characters, for an environment variable: differences are cut until it fits."""
    size = max([1024, *(len(source.diff) for source in sources)])
    while True:
        text = json.dumps([asdict(source.cut(size)) for source in sources])
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        if len(packed) <= limit or size == 0:
            return packed if len(packed) <= limit else ""
        size = size * 4 // 5 if size > 512 else 0


def unpack(packed: str) -> tuple[Source, ...]:
    """What :func:`pack` made; nothing where it is damaged."""
    try:
        values = json.loads(zlib.decompress(base64.b64decode(packed)))
        return tuple(from_json(value) for value in values)
    except (ValueError, TypeError, zlib.error):
        return ()


def from_json(value: dict[str, object]) -> Source:
    """A source from its fields; unknown ones of a newer version are passed over."""
    known = {name: value[name] for name in Source.__dataclass_fields__ if name in value}
    lists = {name: tuple(item) for name, item in known.items() if isinstance(item, list)}
    return Source(**{**known, **lists})  # type: ignore[arg-type]


def _capture(name: str, root: Path, apart: Sequence[Path], deadline: float) -> Source:
    git = Git(root, deadline)
    commit = git.text("rev-parse", "--verify", "--quiet", "HEAD")
    source = Source(
        name,
        commit or None,
        branch=git.text("symbolic-ref", "--short", "--quiet", "HEAD") or None,
        url=scrub(git.text("config", "--get", "remote.origin.url")) or None,
    )
    if git.text("rev-parse", "--is-inside-work-tree") != "true":  # a bare one has no files that could differ
        return source
    inside = [folder.resolve() for folder in apart if root in folder.resolve().parents]
    paths = ["--", ".", *(f":(exclude,literal){folder.relative_to(root)}" for folder in inside)]
    status, whole = git.read("status", "--porcelain=v2", "-z", "--untracked-files=all", "--no-renames", *paths)
    changed, untracked = _status(status)
    left = [] if whole else ["more: git status took too long or said too much"]
    files: list[str] = []
    if changed or not whole:
        secret = (*SECRET_FILES, *(f"{folder}/**" for folder in SECRET_FOLDERS))
        hidden = [f":(exclude,icase,glob)**/{pattern}" for pattern in secret]
        output, whole_diff = git.read(*DIFF, commit or EMPTY_TREE, *paths, *hidden)
        files = sections(output.decode("utf-8", "surrogateescape"))
        if not whole_diff:
            files = files[:-1]  # the last one may be half a file
            left.append("more: git diff took too long or said too much")
        left += [f"{path}: its name says that it is secret" for path in changed if secret_file(path)]
    files += _new_files(root, untracked, left, deadline)
    kept, unfit = fitting([scrub(file) for file in files], MAX_DIFF)
    return replace(
        source,
        dirty=bool(changed) if whole or changed else None,
        changed=_some(changed),
        untracked=_some(untracked),
        left_out=_some([*left, *unfit]),
        diff=kept,
    )


def _status(output: bytes) -> tuple[list[str], list[str]]:
    """Tracked paths that differ, and untracked ones, of ``git status --porcelain=v2 -z``."""
    changed, untracked = [], []
    for entry in output.decode("utf-8", "surrogateescape").split("\0"):
        kind, _, rest = entry.partition(" ")
        if kind == "?":
            untracked.append(rest)
        elif kind in ("1", "u"):
            changed.append(rest.split(" ", 7 if kind == "1" else 9)[-1])
    return changed, untracked


def _new_files(root: Path, paths: Sequence[str], left: list[str], deadline: float) -> list[str]:
    """Small untracked source files as sections of a difference; the others go to ``left``."""
    files = []
    for path in paths:
        if time.monotonic() > deadline:
            left.append("more untracked files: there was no time")
            break
        why, text = "no source file", ""
        if secret_file(path):
            why = "its name says that it is secret"
        elif Path(path).suffix in SUFFIXES:
            why, text = _read(root / path)
        if why:
            left.append(f"{path}: {why}")
        else:
            files.append(new_file(path, text))
    return files


def _read(file: Path) -> tuple[str, str]:
    """Why a file cannot be kept, or nothing and its text."""
    try:
        if file.is_symlink() or not file.is_file():
            return "no regular file", ""
        if file.stat().st_size > MAX_FILE:
            return f"larger than {MAX_FILE} bytes", ""
        with file.open(newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError):
        return "not readable as text", ""
    return ("binary", "") if "\0" in text else ("", text)


def _some(names: Sequence[str]) -> tuple[str, ...]:
    more = len(names) - MAX_NAMES
    shown = [name.encode("utf-8", "replace").decode() for name in names[:MAX_NAMES]]
    return (*shown, f"... and {more} more") if more > 0 else tuple(shown)
