"""The order in which items of a bulk job are emitted: by shared prefixes of their prompts."""
