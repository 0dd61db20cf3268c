"""Webhook deliveries: claims, HTTP requests, retry schedule and history."""
