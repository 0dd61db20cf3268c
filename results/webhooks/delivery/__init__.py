"""Webhook deliveries: claiming, posting, retry schedule and history."""
