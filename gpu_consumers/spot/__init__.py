"""Notices that a spot GPU is taken away."""
