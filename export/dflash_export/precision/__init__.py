"""Number formats: which lowering a program gets, what it is calibrated on, and the report of what it cost."""
