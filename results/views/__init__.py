"""Results and items of a batch as its owner reads them while it runs and after it has ended."""
