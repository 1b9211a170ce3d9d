"""Files in an environment whose encoding is not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.runs import heartbeat

PROGRAM = r"""
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from orchestrator.report.report import write_trials
from orchestrator.runs import heartbeat
from workloads.data.retrieval.runs import write_qrels, write_run
from workloads.data.retrieval.types import Retrieval

folder = Path(sys.argv[1])
ids = pa.array(["Z\xfcrich"])
data = Retrieval(ids, ids, ids, ids, np.array([[0, 0, 1]], np.int32), np.zeros(1, np.int8))
write_trials([{"city": "Z\xfcrich"}], folder)
write_run(folder / "run.trec", data, [0], np.array([[0]]), np.array([[1.0]]), "tag")
write_qrels(folder / "qrels.trec", data, [0])
heartbeat.give_up(folder, "Z\xfcrich does not answer")
assert heartbeat.given_up(folder) is not None
try:
    "Z\xfcrich".encode(open(folder / "probe", "w").encoding)
except UnicodeEncodeError:
    print("not UTF-8")
"""


def test_files_with_text_of_the_user_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | ascii_only, capture_output=True, text=True, check=False)
    assert done.stdout == "not UTF-8\n", done.stderr
    for name in ("trials.csv", "run.trec", "qrels.trec", heartbeat.GIVEN_UP):
        assert "Zürich" in (tmp_path / name).read_text("utf-8"), name
