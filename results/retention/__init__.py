"""How long things are kept, and how they go: by their owner's word, by age, or as left-overs."""
