"""Webhooks: what jobs did, told to URLs that tenants name, by the Standard Webhooks scheme."""
