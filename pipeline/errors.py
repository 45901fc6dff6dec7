"""The error for options that a user can correct."""


class OptionError(ValueError):
    """An option that cannot be used as given."""
