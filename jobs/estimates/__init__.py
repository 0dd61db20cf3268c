"""When jobs end and why their items wait: what the API and the webhooks tell users."""
