"""Tenants, API keys, quotas and the usage ledger."""
