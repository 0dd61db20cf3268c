"""Quarantine of work that may have crashed a process: locks, narrowing, attribution, log."""
