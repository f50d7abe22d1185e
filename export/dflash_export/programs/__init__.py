"""The three programs as torch modules: the oracle, and what is traced to ONNX. Inputs and outputs as in the contract."""

from dflash_export.programs.accept import Accept
from dflash_export.programs.draft import Draft
from dflash_export.programs.target import Target

__all__ = ["Accept", "Draft", "Target"]
