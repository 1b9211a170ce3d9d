"""What a run's record must hold so that it can be repeated."""
