"""What the files of a run's folder are called: who writes, reads, stores or removes one takes its name from here."""

from __future__ import annotations

RECORD = "record.json"
"""What was asked, who drives it, how it ended: what makes a folder a run's."""

HISTORY = "history.jsonl"
"""The rows of a run, or of a sweep's winner: a line an epoch."""

STUDY = "study.jsonl"
"""Optuna's journal: a sweep's trials."""

PULSE = "pulse.json"
"""How a run or sweep stands, as its driver says every two seconds."""

TRIALS = "trials.json"
"""The trials of a settled sweep, a row each."""

OUTCOME = "outcome.json"
"""The metrics of what was trained to its end."""

VALIDATION_UNITS, TEST_UNITS = "validation_units.parquet", "test_units.parquet"
"""The values of each user, query or pair."""

TABLES = "tables"
"""The folder of the test evaluation's tables, ``NAME.parquet``, and of their plots where they were logged."""

SEALED = "sealed"
"""The model and its values at the ends that an objective names (of sessions), below ``NNNN``, the epoch."""

TRAIN = "train"
"""Ray's folder below the run's own: a Train run's name is its resume key."""

HALF_WRITTEN = ".checkpoint-*.partial"
"""Folders that a killed writer of checkpoints leaves, as a glob."""
