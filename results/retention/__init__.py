"""Deletion of batches, requests, files and leftover objects: by their owner or by age."""
