"""Input files: reading lines, checking them, estimating their tokens."""
