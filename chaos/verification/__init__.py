"""Checks that drills share: each reads an installation and passes what it read to the checkers."""
