"""Which autoscaler decides: the owner of the topic `scaling`, its epoch and what it remembers."""
