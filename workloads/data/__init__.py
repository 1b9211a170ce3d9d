"""Datasets by name: present, intact, converted once and shared. Light to import; numbers load when asked for.

``workloads.data.splits`` (numpy) cuts the validation part and the users' item lists.
"""

from workloads.data.cache import cache_dir, default_data_root
from workloads.data.datasets import DATASETS, check, dataset, fetch, fingerprint, verify
from workloads.data.errors import CacheUnwritable, DataError, DataUnreachable
from workloads.data.interactions import Interactions
from workloads.data.loading import load_interactions
from workloads.data.source import Dataset, SourceFile

__all__ = [
    "DATASETS",
    "CacheUnwritable",
    "DataError",
    "DataUnreachable",
    "Dataset",
    "Interactions",
    "SourceFile",
    "cache_dir",
    "check",
    "dataset",
    "default_data_root",
    "fetch",
    "fingerprint",
    "load_interactions",
    "verify",
]
