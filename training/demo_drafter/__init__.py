"""The recipe of the demo drafter: what was asked, and how it was trained."""
