"""How a container ends, and a command of a person's shell with it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a stage ends. 10-19 mean that trying again cannot help: ``podFailurePolicy`` fails the Job at once."""

    DONE = 0
    BAD_CONFIGURATION = 10
    BAD_INPUT = 11
    NON_FINITE = 12
    REFUSED = 13
    DOES_NOT_FIT = 14
    INTERNAL_ERROR = 19
    INTERRUPTED = 20
    ENGINE_CRASHED = 21


FATAL_EXIT_CODES = tuple(range(10, 20))
