"""Child processes: spawn, supervise, readiness, exit reasons and ports."""
