"""Where a model's files come from: a folder, a bucket or the hub. Only `push` and `up` read it."""
