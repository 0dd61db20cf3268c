"""Buffered chunks: queues by pool, batch key, tenant and job, and their maintenance."""
