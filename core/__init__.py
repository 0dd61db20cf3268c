"""What every package shares: ids, states, errors, limits, clock, settings and logs. No I/O."""
