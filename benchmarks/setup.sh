#!/bin/sh
# Install the peers into .cache/peers, apart from the project's own environment. Takes about 6 GB.
# PYTHON names another Python 3.11 than the one on PATH.
set -eu
cd "$(dirname "$0")/.."
[ -x .cache/peers/bin/python ] || "${PYTHON:-python3.11}" -m venv .cache/peers
.cache/peers/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt
