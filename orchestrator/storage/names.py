"""Names of the files in a run's folder."""

from __future__ import annotations

RECORD = "record.json"
"""The record: the request, the driver, the end. A folder with this file is a run's folder."""

HISTORY = "history.jsonl"
"""Metrics of a run, or of a sweep's winner: one line per epoch."""

STUDY = "study.jsonl"
"""Optuna's journal: a sweep's trials."""

STATUS_FILE = "pulse.json"
"""Status of a run or sweep, written every two seconds."""

TRIALS = "trials.json"
"""Trials of a finished sweep, one row each."""

OUTCOME = "outcome.json"
"""Metrics of the finished training."""

VALIDATION_UNITS, TEST_UNITS = "validation_units.parquet", "test_units.parquet"
"""Values of each user, query or pair."""

LOOKS = "looks.jsonl"
"""The run's rows in the ledger of looks, one a line."""

TABLES = "tables"
"""Folder of the test evaluation's tables, ``NAME.parquet``, and of their plots if they were logged."""

SEALED = "sealed"
"""Model and test values at the objective's ``test_epochs`` (ends of sessions), in subfolders ``NNNN`` (epoch)."""

OUTCOMES = "outcomes"
"""Folder among a run's artifacts in MLflow: the record files of each registered version, by its outcome's digest."""

TRAIN = "train"
"""Ray's folder in the run's folder. Ray Train resumes by this name."""

HALF_WRITTEN = ".*.partial"
"""Glob of the folders that a killed writer of checkpoints leaves. A file of such a name is a download."""
