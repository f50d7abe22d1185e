"""The doctor's part that needs PyTorch: checkpoints against transformers, and what in a config makes drafts bad."""
