"""The example workload passes the conformance suite, with the example's own test."""

import sys

from tests.support.projects import EXAMPLE

sys.path.append(str(EXAMPLE))  # appended, so that a second process has it, too
from test_linreg import TestLinReg

__all__ = ["TestLinReg"]
