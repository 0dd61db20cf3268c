"""Commands of operators: tenants, keys, models, topics, audit, rebuild, webhooks."""
