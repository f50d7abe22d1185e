"""Where buffers lie, for any geometry and limits."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_engines import contract
from dflash_engines.contract import ACCEPT_VARIANTS, CacheShape, Dtype, Geometry, Limits, Program
from dflash_engines.device.arena import DeviceArena
from dflash_engines.device.host import HostDevice
from dflash_engines.device.layout import ALIGNMENT, STATE, Group, layout, sizes

CACHE = st.builds(lambda heads, size: CacheShape(kv_heads=heads, head_dim=size), st.integers(1, 3), st.integers(1, 5))
GEOMETRY = st.builds(
    lambda target, draft, vocab, dtype: Geometry(
        vocab_size=vocab, hidden_size=3, taps=2, cache_dtype=dtype,
        target_caches=tuple(target), draft_caches=tuple(draft),
    ),
    st.lists(CACHE, min_size=1, max_size=3), st.lists(CACHE, min_size=1, max_size=2), st.integers(1, 70),
    st.sampled_from([Dtype.FLOAT, Dtype.FLOAT16, Dtype.BFLOAT16]),
)  # fmt: skip
LIMITS = st.builds(
    lambda length, slots, chunk, blocks: Limits(
        max_len=length, max_batch=slots, prefill_chunk=chunk, block_sizes=tuple(blocks)
    ),
    st.integers(1, 20), st.integers(1, 4), st.integers(2, 9), st.lists(st.integers(1, 6), min_size=1, max_size=3),
)  # fmt: skip


def programs(geometry: Geometry) -> tuple[Program, ...]:
    accepts = [contract.accept(geometry, variant) for variant in ACCEPT_VARIANTS]
    drafts = [contract.draft(geometry), contract.draft(geometry, noise=True)]
    return (contract.target(geometry, hidden_output=True), *drafts, *accepts)


@settings(max_examples=40)
@given(GEOMETRY, LIMITS)
def test_places_are_aligned_and_never_overlap(geometry: Geometry, limits: Limits) -> None:
    found = layout(programs(geometry), limits, max(*limits.block_sizes, 2))
    places = sorted(found.places.values(), key=lambda place: place.offset)
    assert all(place.offset % ALIGNMENT == 0 for place in places)
    assert all(a.end <= b.offset for a, b in pairwise(places))
    assert places[-1].end <= found.nbytes
    assert set(STATE) <= set(found.places)


@settings(max_examples=40)
@given(GEOMETRY, LIMITS)
def test_every_array_of_every_call_lies_within_its_buffer(geometry: Geometry, limits: Limits) -> None:
    device, widest = HostDevice(), max(*limits.block_sizes, 2)
    arena = DeviceArena(device, programs(geometry), limits, widest)
    ends = {place.offset: place.end for place in arena.layout.places.values()}
    for program in arena.programs:
        for slots in range(1, limits.max_batch + 1):
            size = sizes(limits, slots=slots, rows_in=widest, rows_out=widest)
            for name, array in arena.iteration_arrays(program, size).items():
                assert array.offset + array.nbytes <= ends[array.offset], name
        if not program.startswith("draft"):
            one = sizes(limits, slots=1, rows_in=limits.prefill_chunk, rows_out=1)
            seen = [arena.prefill_arrays(program, one, slot) for slot in range(limits.max_batch)]
            for binding in arena.programs[program].updated.values():
                offsets = [arrays[binding].offset for arrays in seen]
                assert all(b - a == seen[0][binding].nbytes for a, b in pairwise(offsets)), binding
    arena.release()


@settings(max_examples=40)
@given(GEOMETRY, LIMITS)
def test_prefill_shares_nothing_but_caches_with_iterations(geometry: Geometry, limits: Limits) -> None:
    found = layout(programs(geometry), limits, max(*limits.block_sizes, 2))
    own = [found.groups[group] for group in (Group.PREFILL, Group.FIRST_TOKEN)]
    rest = [span for group, span in found.groups.items() if group not in (Group.PREFILL, Group.FIRST_TOKEN)]
    for span in own:
        assert all(span.offset >= o.offset + o.nbytes or span.offset + span.nbytes <= o.offset for o in rest)


def test_fresh_memory_is_zeroed_before_anything_runs() -> None:
    """A NaN in a masked row still poisons attention's output, and fresh memory may hold any."""
    geometry = Geometry(vocab_size=5, hidden_size=3, taps=1, target_caches=(CacheShape(kv_heads=1, head_dim=2),),
                        draft_caches=(CacheShape(kv_heads=1, head_dim=2),))  # fmt: skip
    device = HostDevice()
    arena = DeviceArena(device, programs(geometry), Limits(max_len=9), 8)
    device.synchronize()
    whole = arena.iteration_arrays("target", sizes(Limits(max_len=9), slots=1, rows_in=8, rows_out=8))
    assert not any(device.view(array).any() for array in whole.values())
