"""Actuators of the operator: a command or a webhook that reads orders as JSON."""
