"""Faults: each module injects one kind and returns the function that heals it."""
