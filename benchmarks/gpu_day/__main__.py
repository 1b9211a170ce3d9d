"""The command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import benchmarks.gpu_day
from benchmarks.gpu_day.inputs import Inputs
from benchmarks.gpu_day.session import Session, current_commit, missing


def main(words: list[str] | None = None) -> None:
    if absent := missing(("torch", "numpy")):
        raise SystemExit(f"Missing: {', '.join(absent)}")
    from benchmarks.gpu_day.plan import PARTS

    def chosen(text: str) -> list[str]:
        if unknown := [part for part in text.split(",") if part not in PARTS]:
            raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
        return text.split(",")

    def pattern(text: str) -> re.Pattern[str]:
        try:
            return re.compile(text)
        except re.error as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_day", description=benchmarks.gpu_day.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--parts", type=chosen, required=True, metavar="1,2", help="in the order in which they are run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON files; finished rows are skipped")
    parser.add_argument("--minutes", type=float, default=20.0, help="when the last row ends (default: 20)")
    parser.add_argument("--commit", help="where git is missing; rows of an unknown commit are measured again")
    parser.add_argument("--rows", type=pattern, metavar="REGEX", help="only rows whose name it finds")
    parser.add_argument("--dry", action="store_true", help="smallest sizes on the virtual device")
    options = parser.parse_args(words)
    rows = {part: list(PARTS[part](options.dry)) for part in options.parts}
    if options.rows:
        rows = {part: [row for row in each if options.rows.search(row.name)] for part, each in rows.items()}
    for part, each in rows.items():
        if absent := missing(sorted({name for row in each for name in row.needs})):
            print(f"Part {part} misses {', '.join(absent)}: rows that need them are left out", file=sys.stderr)
    with _device(options.dry), Inputs(options.dry) as inputs:
        session = Session(options.out, options.commit or current_commit(), options.minutes, inputs, options.dry)
        for part in options.parts:
            session.run_part(part, rows[part])


@contextmanager
def _device(dry: bool) -> Iterator[None]:
    import torch

    if dry:
        import torchvision  # noqa: F401  # keeps references to functions of torch
        import transformers  # noqa: F401

        from tests.support.virtual_device import virtual_cuda
    elif not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device. --dry tries the program without one")
    torch.set_num_threads(1)  # as a run's worker with one CPU
    with virtual_cuda() if dry else nullcontext():
        yield


if __name__ == "__main__":
    main()
