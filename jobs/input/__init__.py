"""Input files: reads and checks their lines, estimates tokens, finds duplicates."""
