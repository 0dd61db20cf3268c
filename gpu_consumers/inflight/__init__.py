"""Work in flight on a replica: deliveries, batch runs, calls, outcomes and replies."""
