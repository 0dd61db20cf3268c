"""Checkers: functions over histories, rows and files that return violations; no I/O."""
