"""The one error a user of the trainer sees: what is wrong, where, and how to put it right."""

from dflash_engines.errors import DflashError


class TrainingError(DflashError):
    """A wrong input or an impossible request. The message says what, where and how to fix it."""
