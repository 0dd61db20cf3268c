"""An engine without a model; every answer says that it is simulated."""
