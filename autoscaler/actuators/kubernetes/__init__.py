"""Kubernetes: the number of replicas as the scale of Deployments."""
