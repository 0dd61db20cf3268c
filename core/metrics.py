"""What every role tells Prometheus of itself."""

from prometheus_client import Gauge

ROLE_READY = Gauge("millrace_role_ready", "1 once this role does its work, 0 while it starts")
