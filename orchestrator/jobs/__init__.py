"""Ray jobs: submitted, looked at, stopped."""
