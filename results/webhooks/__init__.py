"""Webhooks by the Standard Webhooks scheme: sends job events to the URLs of tenants."""
