"""HTTP: protocol limits, middleware, errors, request bodies and the OpenAPI document."""
