"""A tenant beside the one that a drill works for."""

from uuid import uuid4

from chaos.clients.client import Client
from chaos.drills.context import DrillContext
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant


def another_tenant(context: DrillContext, name: str) -> Client:
    """Create one and return a client with its key."""
    with context.installation.engine.begin() as connection:
        tenant = create_tenant(connection, f"{name}-{uuid4().hex[:8]}")
        secret = create_key(connection, tenant, "chaos").secret
    client = context.client(name)
    client.key = secret
    return client
