#!/bin/sh
# Benchmarks of time, one after another, on a machine that does nothing else; README.md has the minutes each takes.
# Named ones alone: all.sh mf_epoch samplers. What failed is named at the end.
set -u
cd "$(dirname "$0")/.."
failed=""
for name in ${*:-startup ranking mf_epoch samplers sequential bcl_loss augment simclr_step bi_encoder_speed \
    text_ranker_step lifelong_search trial_overhead packing ml100k_quality}; do
    echo "== $name, $(date +%T)"
    set --
    grep -qE "arguments\(|--patience" "benchmarks/$name.py" && set -- --patience 60 # waits for a quiet machine
    "${PYTHON:-python}" "benchmarks/$name.py" "$@" || failed="$failed $name"
done
[ -z "$failed" ] || { echo "Failed:$failed"; exit 1; }
