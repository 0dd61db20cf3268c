"""What starts and ends replicas: the embedded stack, Kubernetes, KEDA, a command or a webhook."""
