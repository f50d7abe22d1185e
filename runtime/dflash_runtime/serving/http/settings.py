"""How the server is set up, apart from the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes are in bytes, times in seconds."""

    model: str  # the name that requests give
    api_keys: tuple[str, ...] = ()  # none lets everybody in
    allowed_origins: tuple[str, ...] = ()  # of web pages on other hosts (CORS)
    page: bool = True  # whether / is the playground
    largest_body: int = 4 * 2**20
    body_timeout: float = 30.0  # for a request's body to arrive
    request_timeout: float | None = None  # for an answer to be whole, from its arrival
    drain_timeout: float = 30.0  # for running answers, when the server is told to end
    stall_timeout: float = 60.0  # for a client to take what was sent
    acceptance_alarm: float = 1.2  # tokens of a pass that drafted, below which drafting is not worth while
