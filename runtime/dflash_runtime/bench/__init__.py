"""dflash-bench: speed with and without the drafter, and of peers, on the same prompts, in one process, in turn."""
