"""Anchors, reveals and the simulated walk."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_training.acceptance import Tally, accepted_counts, walk
from dflash_training.blocks import draw_anchors, draw_reveals


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 30)), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(),
)
def test_anchors_are_different_sorted_and_inside(bounds: list[tuple[int, int]], count: int, seed: int) -> None:
    first = torch.tensor([a for a, _ in bounds])
    last = torch.tensor([a + more for a, more in bounds])
    anchors = draw_anchors(first, last, count, torch.Generator().manual_seed(seed % 2**63))
    assert anchors.shape == (len(bounds), count)
    for row, (start, more) in zip(anchors.tolist(), bounds, strict=True):
        real = [anchor for anchor in row if anchor >= 0]
        assert real == sorted(set(real))
        assert len(real) == min(count, more + 1)
        assert all(start <= anchor <= start + more for anchor in real)


def test_every_anchor_is_drawn_as_often() -> None:
    generator = torch.Generator().manual_seed(0)
    first, last = torch.tensor([3]), torch.tensor([12])
    drawn = torch.cat([draw_anchors(first, last, 4, generator) for _ in range(2000)]).flatten()
    share = torch.bincount(drawn, minlength=13)[3:].float() / 2000
    assert torch.allclose(share, torch.full((10,), 0.4), atol=0.05)


def test_the_anchor_is_always_shown_and_the_rest_as_often_as_asked() -> None:
    anchors = torch.zeros(50, 40).long()
    generator = torch.Generator().manual_seed(0)
    assert draw_reveals(anchors, 8, 0.0, generator).sum() == anchors.numel()
    revealed = draw_reveals(anchors, 8, 0.5, generator)
    assert bool(revealed[..., 0].all())
    touched = revealed[..., 1:].any(-1).float().mean()
    assert 0.35 < float(touched) < 0.5


def test_accepted_counts_stop_at_the_first_mistake_and_at_the_end() -> None:
    tokens = torch.tensor([5, 6, 7, 8, 9])
    predicted = torch.tensor([[0, 6, 7, 8], [0, 7, 0, 9], [0, 1, 9, 0], [0, 9, 9, 9]])
    assert accepted_counts(predicted, tokens, torch.tensor([0, 1, 2, 3])).tolist() == [3, 1, 0, 1]


def test_walk_counts_passes_as_the_loop_does() -> None:
    tally = Tally()
    walk([2, 0, 0, 1, 0, 9], 6, 3, tally)  # emits 3, then 2, then the last one although 9 were right
    assert (tally.passes, tally.tokens) == (3, 6)
    assert tally.reached == [3, 1, 0]
    assert tally.acceptance_length == 2.0
