"""Replicas that follow a trace of work, by Millrace's autoscaler and by an emulation of KEDA."""
