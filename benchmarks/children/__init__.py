"""Programs that a benchmark runs as child processes."""
