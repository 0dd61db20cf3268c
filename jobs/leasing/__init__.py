"""Leases on jobs, fenced by epochs, and their heartbeat."""
