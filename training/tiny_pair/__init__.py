"""Makes the tiny pair in `models/tiny`: a target of under 2 M parameters and its drafter, for tests."""
