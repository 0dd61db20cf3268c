"""KEDA and HorizontalPodAutoscalers: the number of replicas as a metric."""
