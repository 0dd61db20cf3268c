"""Overload of a pool: which work is shed, in which order, and when it may be tried again."""
