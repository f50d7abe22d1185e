"""The HTTP server: OpenAI's API before a ConcurrentDecoder."""
