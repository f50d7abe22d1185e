"""dflash-doctor: why acceptance is low. A battery of checks, each with a verdict and what to do about it."""
