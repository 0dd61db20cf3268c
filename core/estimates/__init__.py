"""Estimates of when jobs end, from the work of a pool, its rate and the weights of its tenants."""
