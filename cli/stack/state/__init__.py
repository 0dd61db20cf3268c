"""The data folder of an embedded stack and the files in it."""
