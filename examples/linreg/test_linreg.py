"""What every workload must pass: ``pytest test_linreg.py``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
from linreg.workload import SIZES, LinReg

from workloads.testing import Conformance


class TestLinReg(Conformance):
    workload = LinReg
    params: ClassVar = {"lr": 0.05}

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        """Context in which a new object of the class has another test split; training must give the same result."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(SIZES, "test", 32)
            yield
