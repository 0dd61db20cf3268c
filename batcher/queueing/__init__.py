"""Buffered chunks by pool, batch key, tenant and job."""
