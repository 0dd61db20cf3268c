"""The projections of ended jobs made again from the log: into shadow tables, compared, swapped."""
