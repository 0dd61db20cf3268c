"""Workloads that several drills put on an installation."""
