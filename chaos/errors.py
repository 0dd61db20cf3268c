"""Why a promise was not tried."""


class DrillError(Exception):
    """A drill could not be carried out: its promise was not tried."""


class NotServedError(DrillError):
    """The installation did not do what it owes its client: a judge of that counts it as broken."""
