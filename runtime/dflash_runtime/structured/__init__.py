"""Structured output: what a request asks for, and the masks that hold every token to it."""
