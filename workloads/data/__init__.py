"""Datasets by name: download, verification, cached conversion.

Imports neither torch nor numpy until a dataset is read. One folder for each kind of dataset: ``interactions``,
``images``, sentence ``pairs``, ``retrieval`` collections, ``questions`` about graphs.
"""

from workloads.data.cache import cache_dir, default_data_root
from workloads.data.datasets import (
    DATASETS,
    check,
    check_readable,
    dataset,
    fetch,
    fingerprint,
    occupations,
    skipped_images_warning,
    verify,
)
from workloads.data.errors import CacheUnwritable, DataError, DataUnreachable
from workloads.data.interactions.load import load_interactions
from workloads.data.interactions.tables import absolute
from workloads.data.interactions.types import Interactions
from workloads.data.source import Dataset, ReadOptions, SourceFile

__all__ = [
    "DATASETS",
    "CacheUnwritable",
    "DataError",
    "DataUnreachable",
    "Dataset",
    "Interactions",
    "ReadOptions",
    "SourceFile",
    "absolute",
    "cache_dir",
    "check",
    "check_readable",
    "dataset",
    "default_data_root",
    "fetch",
    "fingerprint",
    "load_interactions",
    "occupations",
    "skipped_images_warning",
    "verify",
]
