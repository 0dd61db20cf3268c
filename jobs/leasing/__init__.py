"""Leases on jobs, fenced by epochs; their heartbeat; a fair queue of jobs to lease."""
