"""Periodic tasks of intake: re-emission, resume, retries and expiry."""
