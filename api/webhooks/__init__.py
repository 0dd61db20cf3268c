"""Webhook endpoints and deliveries: routes and their objects."""
