"""Errors that end a drill."""


class DrillError(Exception):
    """A drill cannot be carried out, so its promise is not tested."""


class NotServedError(DrillError):
    """The installation failed to serve a client's request, which is a violation."""
