"""Clients that record the history of their operations."""
