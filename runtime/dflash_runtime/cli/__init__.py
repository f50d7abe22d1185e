"""Commands: thin layers over the library."""
