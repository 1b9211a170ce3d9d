"""Image datasets: sources, decoding, splits. Only ``resident`` imports PyTorch."""
