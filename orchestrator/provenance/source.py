"""The state of the source code: commit and uncommitted diff of its repositories, from git within a time limit."""

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
"""Time limit of all git calls together, so that a large repository does not delay a start."""

MAX_DIFF = 200_000
MAX_FILE = 50_000
MAX_NAMES = 200
"""Limits: characters of a diff, bytes of one untracked file, names in a list."""

SUFFIXES = frozenset({
    ".py", ".pyi", ".pyx", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".sql", ".c", ".cc", ".cpp", ".h",
    ".hpp", ".cu", ".cuh", ".rs", ".proto", ".jinja",
})  # fmt: skip
"""Untracked files with these suffixes are recorded; others are only listed."""

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--submodule=short", "--unified=3",
        "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """State of a repository. ``dirty`` is None if git was too slow.

    ``diff`` applies to ``commit``; it includes untracked files and is scrubbed. ``left_out`` lists the files that it
    lacks, and why. ``package`` is the path of a third-party workload's project within the repository.
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
        """Limit the diff to ``limit`` characters by leaving out whole files."""
        if len(self.diff) <= limit:
            return self
        kept, left = fitting(sections(self.diff), limit)
        return replace(self, diff=kept, left_out=(*self.left_out, *left))


def capture(
    directory: Path, own: Path, apart: Sequence[Path] = (), workload: Path | None = None, seconds: float = SECONDS
) -> tuple[Source, ...]:
    """Capture up to three repositories: that of ``directory`` (named ``project``), of the package ``own``
    (``orchestrator``), and of the folder ``workload`` (``workload``). The same repository is captured once.

    Files below ``apart``, which holds runs and their results, are left out. Never raises.
    """
    deadline = time.monotonic() + seconds
    roots: dict[str, str] = {}
    if Git(own, deadline).text("ls-files", "--", "__init__.py"):  # tracked, not merely installed below a repository
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
    sources = {root: _capture(name, Path(root), apart, deadline) for name, root in roots.items()}
    if workload and theirs:
        sources[theirs] = replace(sources[theirs], package=package.project(workload, Path(theirs)))
    return tuple(sources.values())


def pack(sources: Sequence[Source], limit: int) -> str:
    """Encode sources as at most ``limit`` ASCII characters, for an environment variable; diffs are cut to fit."""
    size = max([1024, *(len(source.diff) for source in sources)])
    while True:
        text = json.dumps([asdict(source.cut(size)) for source in sources])
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        if len(packed) <= limit or size == 0:
            return packed if len(packed) <= limit else ""
        size = size * 4 // 5 if size > 512 else 0


def unpack(packed: str) -> tuple[Source, ...]:
    """Decode the output of :func:`pack`; empty if it is damaged."""
    try:
        values = json.loads(zlib.decompress(base64.b64decode(packed)))
        return tuple(from_json(value) for value in values)
    except (ValueError, TypeError, zlib.error):
        return ()


def from_json(value: dict[str, object]) -> Source:
    """A source from its fields; unknown fields of a newer version are ignored."""
    fields = {name: value[name] for name in Source.__dataclass_fields__ if name in value}
    lists = {name: tuple(item) for name, item in fields.items() if isinstance(item, list)}
    return Source(**{**fields, **lists})  # type: ignore[arg-type]


def _capture(name: str, root: Path, apart: Sequence[Path], deadline: float) -> Source:
    git = Git(root, deadline)
    commit = git.text("rev-parse", "--verify", "--quiet", "HEAD")
    source = Source(
        name,
        commit or None,
        branch=git.text("symbolic-ref", "--short", "--quiet", "HEAD") or None,
        url=scrub(git.text("config", "--get", "remote.origin.url")) or None,
    )
    if git.text("rev-parse", "--is-inside-work-tree") != "true":  # a bare repository has no files that could differ
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
    """The changed and the untracked paths in the output of ``git status --porcelain=v2 -z``."""
    changed = []
    untracked = []
    for entry in output.decode("utf-8", "surrogateescape").split("\0"):
        kind, _, rest = entry.partition(" ")
        if kind == "?":
            untracked.append(rest)
        elif kind in ("1", "u"):
            changed.append(rest.split(" ", 7 if kind == "1" else 9)[-1])
    return changed, untracked


def _new_files(root: Path, paths: Sequence[str], left: list[str], deadline: float) -> list[str]:
    """Small untracked source files as sections of a diff; the others are added to ``left``."""
    files = []
    for path in paths:
        if time.monotonic() > deadline:
            left.append("more untracked files: there was no time")
            break
        why = "no source file"
        text = ""
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
    """The reason why a file cannot be recorded, or an empty reason and its text."""
    try:
        if file.is_symlink() or not file.is_file():
            return "no regular file", ""
        if file.stat().st_size > MAX_FILE:
            return f"larger than {MAX_FILE} bytes", ""
        with file.open(encoding="utf-8", newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError):
        return "not readable as text", ""
    return ("binary", "") if "\0" in text else ("", text)


def _some(names: Sequence[str]) -> tuple[str, ...]:
    more = len(names) - MAX_NAMES
    shown = [name.encode("utf-8", "replace").decode() for name in names[:MAX_NAMES]]
    return (*shown, f"... and {more} more") if more > 0 else tuple(shown)
