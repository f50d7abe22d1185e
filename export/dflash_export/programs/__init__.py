"""The three programs as torch modules, with the contract's inputs and outputs: the oracle, and what is traced."""

from dflash_export.programs.accept import Accept
from dflash_export.programs.draft import Draft
from dflash_export.programs.target import Target

__all__ = ["Accept", "Draft", "Target"]
