"""Collaborative filtering from implicit feedback. Parameters in ``params.py``; start at ``workload.py``."""
