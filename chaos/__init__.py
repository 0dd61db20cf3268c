"""Fault injection on one machine: real processes, planned faults, recorded histories, checkers."""
