"""The example workload passes the conformance suite by its own test."""

import sys

from tests.support.projects import EXAMPLE

sys.path.append(str(EXAMPLE))  # for the second process, too
from test_linreg import TestLinReg

__all__ = ["TestLinReg"]
