"""Periodic work of intake: re-emit, resume, retry and expire."""
