"""The consumer loop of a GPU pool and the engines it runs."""
