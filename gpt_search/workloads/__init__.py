"""Models to tune, one file per family."""
