"""Waits for the reply to an online call, with deadline and caller heartbeat."""
