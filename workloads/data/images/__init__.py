"""Image datasets: sources, decoding and splits. Light to import; only ``resident`` needs PyTorch."""
