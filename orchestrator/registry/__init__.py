"""Models in the registry, and what they predict."""
