"""Webhook endpoints: URLs, address rules, name resolution and signing secrets."""
