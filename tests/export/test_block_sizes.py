import pytest

from dflash_export.block_sizes import offered


@pytest.mark.parametrize(
    ("trained", "sizes"),
    [
        (2, (2,)),
        (5, (2, 3, 4, 5)),
        (7, (2, 3, 4, 5, 6, 7)),
        (8, (2, 3, 4, 5, 6, 8)),
        (16, (2, 3, 4, 5, 6, 8, 10, 12, 14, 16)),
        (18, (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18)),
        (32, (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)),
    ],
)
def test_small_sizes_are_offered_each_and_large_ones_less_densely(trained: int, sizes: tuple[int, ...]) -> None:
    assert offered(trained) == sizes
