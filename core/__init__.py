"""The shared language: ids, states, errors, limits, clock, settings and logs. No I/O."""
