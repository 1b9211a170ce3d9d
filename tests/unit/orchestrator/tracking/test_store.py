"""The SQLite store."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.registry import models as registry
from orchestrator.storage.settings import resolve


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "garbage.db"
    file.write_bytes(b"no database " * 400)
    with pytest.raises(UserError, match=r"garbage\.db cannot be used: got file is not a database\. Name") as caught:
        registry.client(resolve({"tracking": f"sqlite:///{file}"}))
    assert (caught.value.code, file.read_bytes()) == (UNAVAILABLE, b"no database " * 400)
    assert not file.with_suffix(".ready").exists()
