"""Why a promise was not tried."""


class DrillError(Exception):
    """A drill could not be carried out: its promise was not tried."""
