"""Drills: each module injects faults into an installation and yields measures of promises."""
