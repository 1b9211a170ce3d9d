"""Workloads made of less than a class of six methods: a function, a Lightning module, a Hugging Face Trainer."""
