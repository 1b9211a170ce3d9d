"""Diffs in git's format: split them by file, limit their size, add untracked files."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_SUBMODULE = re.compile(  # the last form has no other sign: the same commit, with changes in its files
    r"^(?:index .* 160000|(?:new|deleted) file mode 160000|\+Subproject commit [0-9a-f]+-dirty)$", re.MULTILINE
)


def sections(difference: str) -> list[str]:
    """The sections of a diff, one a file."""
    return [section for section in _SECTION.split(difference) if section]


def fitting(files: Iterable[str], limit: int) -> tuple[str, list[str]]:
    """Join the sections of a diff that can be applied and fit into ``limit`` characters; list the others, with why."""
    kept = []
    left = []
    size = 0
    for section in files:
        why = None
        if re.search(r"^Binary files |^GIT binary patch", section, re.MULTILINE):
            why = "binary"
        elif _SUBMODULE.search(section):
            why = "a submodule"
        elif size + len(section) > limit:
            why = f"{len(section)} characters, and the difference is kept up to {limit}"
        if why:
            left.append(f"{path_of(section)}: {why}")
        else:
            kept.append(section)
            size += len(section)
    return "".join(kept), left


def path_of(section: str) -> str:
    """The file of a section, from its first line ``diff --git a/NAME b/NAME``."""
    names = section.partition("\n")[0].removeprefix("diff --git ")
    return names[2 : 2 + (len(names) - 5) // 2] if names.startswith("a/") else names


def new_file(path: str, text: str) -> str:
    """A new file as git writes it in a diff."""
    names = [_quoted(f"{side}/{path}") for side in "ab"]
    head = f"diff --git {names[0]} {names[1]}\nnew file mode 100644\n"
    if not text:
        return f"{head}index 0000000..e69de29\n"
    lines = text.split("\n")
    ended = lines[-1] == ""
    body = "".join(f"+{line}\n" for line in (lines[:-1] if ended else lines))
    tab = "\t" if " " in path and not names[1].startswith('"') else ""
    count = len(lines) - ended
    end = "" if ended else "\\ No newline at end of file\n"
    return f"{head}--- /dev/null\n+++ {names[1]}{tab}\n@@ -0,0 +1,{count} @@\n{body}{end}"


def _quoted(name: str) -> str:
    """A name, quoted as git does if it has quotes or control characters."""
    escapes = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    quoted = "".join(escapes.get(c, c if c.isprintable() or ord(c) > 127 else f"\\{ord(c):03o}") for c in name)
    return name if quoted == name else f'"{quoted}"'
