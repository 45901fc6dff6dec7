"""The one error that users of the pipeline cause and can mend."""


class OptionError(ValueError):
    """An option that cannot be used as given."""
