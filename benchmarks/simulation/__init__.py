"""The scheduling rules of all stages in virtual time: hours of a pool take seconds."""
