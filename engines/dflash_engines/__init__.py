"""The contract, the bundle, lowerings and the backends that run programs. No torch, no transformers."""
