"""Which block sizes a bundle offers: enough to choose from, few enough for engines that pay for each."""

_EACH_UP_TO, _EVERY_SECOND_UP_TO = 6, 16


def offered(trained: int) -> tuple[int, ...]:
    """For a drafter trained for blocks of `trained`: each up to 6, every second to 16, then every fourth, and its own.

    What a larger block gains over the next smaller one shrinks with its size, as drafts far ahead are seldom right.
    """
    each = range(2, min(trained, _EACH_UP_TO) + 1)
    second = range(_EACH_UP_TO + 2, min(trained, _EVERY_SECOND_UP_TO) + 1, 2)
    fourth = range(_EVERY_SECOND_UP_TO + 4, trained + 1, 4)
    return tuple(sorted({*each, *second, *fourth, trained}))
