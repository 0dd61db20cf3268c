"""Webhook endpoints: URLs, address policy, name resolution and signing secrets."""
