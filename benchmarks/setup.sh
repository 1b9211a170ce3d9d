#!/bin/sh
# Install the peers apart from the project's own environment: the recommender's into .cache/peers, those of images and
# sentences into .cache/peers-neural. About 6 GB each; name one to install it alone: setup.sh peers-neural
# PYTHON names another Python 3.11 than the one on PATH.
set -eu
cd "$(dirname "$0")/.."
for peers in ${*:-peers peers-neural}; do
    [ -x ".cache/$peers/bin/python" ] || "${PYTHON:-python3.11}" -m venv ".cache/$peers"
    requirements="benchmarks/requirements${peers#peers}.txt"
    ".cache/$peers/bin/python" -m pip install --quiet --requirement "$requirements"
done
