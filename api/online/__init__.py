"""Online calls: one HTTP call is one record of the log, and its answer comes back by the log."""
