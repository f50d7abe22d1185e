"""Lowerings: named rewrites of the traced graph for one backend. Each takes a model and returns a new one."""
