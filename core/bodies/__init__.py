"""Rules on the body of a request that api, intake and replicas share: limits, fields and tokens."""
