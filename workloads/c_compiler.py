"""Whether this machine can build what torch.compile generates for a GPU."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def has_compiler() -> bool:
    """Whether there is a C compiler, as Triton looks for it, and the headers of this Python."""
    has_command = any(shutil.which(name) for name in (os.environ.get("CC", ""), "clang", "gcc"))
    return has_command and (Path(sysconfig.get_path("include")) / "Python.h").is_file()
