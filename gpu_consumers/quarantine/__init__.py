"""Quarantine of items that may have crashed a process: locks, attribution, narrowing, attempts."""
