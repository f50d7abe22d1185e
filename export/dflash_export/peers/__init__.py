"""Peers for dflash-bench that run in PyTorch: transformers, and the authors' way to run a drafter."""
