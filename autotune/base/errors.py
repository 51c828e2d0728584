"""Errors that a user can act on: one line that names the thing, the reason and the remedy."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line; a contract with scripts."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NO_FEASIBLE_CONFIGURATION = 3
    ENVIRONMENT = 4
    INTERRUPTED = 130


class AutotuneError(Exception):
    """An expected failure. The message is one line and ends with what the user can do."""

    exit_code: ExitCode = ExitCode.CHECK_FAILED

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())


class UsageError(AutotuneError):
    """Wrong arguments or an invalid file: nothing was written."""

    exit_code = ExitCode.USAGE


class NoFeasibleConfigurationError(AutotuneError):
    """The study ended without one configuration that runs and meets the objective."""

    exit_code = ExitCode.NO_FEASIBLE_CONFIGURATION


class EnvironmentProblemError(AutotuneError):
    """The machine, the engine's installation or a file system stands in the way."""

    exit_code = ExitCode.ENVIRONMENT
