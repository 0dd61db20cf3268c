"""Webhook events: turns job events and progress counters into messages."""
