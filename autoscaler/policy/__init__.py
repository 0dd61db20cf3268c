"""Decides how many replicas a pool has, and which: pure rules; clocks and states are arguments."""
