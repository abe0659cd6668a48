"""What is said to a person who asked for what cannot be."""


class UsageError(Exception):
    """What is missing or wrong on the command line, in a sentence."""
