"""Webhook events: from the log and from counters into messages."""
