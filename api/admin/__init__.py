"""Routes of operators below /v1/admin: tenants, keys, and lists of what the installation has."""
