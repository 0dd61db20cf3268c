"""Installations that drills break: brokers, Postgres, proxies, hosts and their settings."""
