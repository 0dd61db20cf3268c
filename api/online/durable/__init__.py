"""Online calls that outlive their connection."""
