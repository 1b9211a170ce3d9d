"""Ray jobs: submit, list, follow, stop."""
