"""A tenant beside the one that a drill works for."""

from uuid import uuid4

from chaos.clients.client import Client
from chaos.drills.context import Setting
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant


def another_tenant(setting: Setting, name: str) -> Client:
    """Create one and return a client with its key."""
    with setting.running.engine.begin() as connection:
        tenant = create_tenant(connection, f"{name}-{uuid4().hex[:8]}")
        secret = create_key(connection, tenant, "chaos").secret
    client = setting.client(name)
    client.key = secret
    return client
