"""Record a command in a terminal of 110 columns as an animated SVG. Needs tmux.

    python docs/screenshots/record.py docs/screenshots/sweep.svg 40 orchestrator sweep recommender ...

The second argument is the number of seconds. Equal frames are kept once.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, LINES = 110, 20
FRAMES_PER_SECOND = 1
SESSION = "record"


def frames(command: str, seconds: float) -> list[tuple[float, str]]:
    """The screens of ``command`` with their times; each differs from the one before."""

    def tmux(*words: str) -> str:
        return subprocess.run(["tmux", *words], check=True, capture_output=True, text=True).stdout

    tmux(
        "new-session",
        "-d",
        "-s",
        SESSION,
        "-x",
        str(COLUMNS),
        "-y",
        str(LINES),
        f"clear; echo {shlex.quote('$ ' + command)}; {command}; sleep 60",
    )
    seen: list[tuple[float, str]] = []
    began = time.monotonic()
    try:
        while (now := time.monotonic() - began) < seconds:
            screen = tmux("capture-pane", "-e", "-p", "-t", SESSION)
            if screen.strip() and (not seen or screen != seen[-1][1]):
                seen.append((now, screen))
            time.sleep(1 / FRAMES_PER_SECOND)
    finally:
        tmux("kill-session", "-t", SESSION)
    return seen


def svg(screen: str, title: str, name: str) -> str:
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"))  # noqa: SIM115
    lines = screen.rstrip("\n").split("\n")
    console.print(Text.from_ansi("\n".join([*lines, *[""] * (LINES - len(lines))])))
    picture = console.export_svg(title=title, unique_id=name)
    return re.sub(r"@font-face {.*?}\s*", "", picture, flags=re.DOTALL)  # fonts of another host


def animated(screens: list[tuple[float, str]], title: str, seconds: float) -> str:
    """All frames in one picture: each is shown from its time to that of the next one."""
    first = svg(screens[0][1], title, "frame0")
    opening = first[: first.index(">") + 1]
    parts = []
    for number, (at, screen) in enumerate(screens):
        until = screens[number + 1][0] if number + 1 < len(screens) else seconds
        start, end = 100 * at / seconds if number else 0.0, 100 * until / seconds
        keys = f"0%,{start:.2f}%{{visibility:hidden}}{start + 0.01:.2f}%,{end:.2f}%{{visibility:visible}}"
        if not number:
            keys = f"0%,{end:.2f}%{{visibility:visible}}"
        keys += f"{end + 0.01:.2f}%,100%{{visibility:hidden}}" if until < seconds else ""
        style = f"@keyframes k{number}{{{keys}}}#f{number}{{animation:k{number} {seconds:.0f}s infinite step-end}}"
        inner = svg(screen, title, f"frame{number}")
        body = inner[inner.index(">") + 1 : inner.rindex("</svg>")]
        parts.append(f'<style>{style}</style><g id="f{number}">{body}</g>')
    return opening + "".join(parts) + "</svg>\n"


if __name__ == "__main__":
    target, length, command = Path(sys.argv[1]), float(sys.argv[2]), shlex.join(sys.argv[3:])
    target.write_text(animated(frames(command, length), "orchestrator", length))
