"""The contract as Markdown: `python -m dflash_engines.contract_table > docs/contract.md`."""

import sys

from dflash_engines import contract
from dflash_engines.contract import AcceptVariant, Binding, CacheShape, Geometry, Program

# Sizes that no other quantity equals, so that they can be shown by their names.
_CACHES = (CacheShape(kv_heads=101, head_dim=103),)
_GEOMETRY = Geometry(vocab_size=3200, hidden_size=107, taps=3, target_caches=_CACHES, draft_caches=_CACHES)
_NAMES = {3200: "V", 100: "⌈V/32⌉", 321: "N·H", 101: "Hkv", 103: "D", 5: "top n"}
_HEAD = """# Bindings

Made from `dflash_engines/contract.py` by `python -m dflash_engines.contract_table`; do not edit.
B slots, S rows in, R rows out, K block, V vocabulary, M cache rows, N taps, H hidden size, Hkv key/value heads,
D head size.
Caches are shown for layer 0; their type is the bundle's precision.
"""


def markdown() -> str:
    """Every program with every binding of its variants."""
    everything = AcceptVariant(sampling=True, filters=True, logprobs=5, bias=True, grammar_mask=True, penalties=True)
    sections = (
        _section(contract.target(_GEOMETRY, hidden_output=True), contract.target(_GEOMETRY)),
        _section(contract.draft(_GEOMETRY, noise=True), contract.draft(_GEOMETRY)),
        _section(contract.accept(_GEOMETRY, everything), contract.accept(_GEOMETRY)),
    )
    return "\n".join((_HEAD, *sections))


def _section(whole: Program, plain: Program) -> str:
    always = {b.name for b in (*plain.inputs, *plain.outputs)}
    rows = [_row(b, side, b.name in always) for side, bindings in (("in", whole.inputs), ("out", whole.outputs))
            for b in bindings]  # fmt: skip
    head = f"## {plain.name}\n\n| | name | type | shape | meaning | variant |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join((head, *rows, ""))


def _row(binding: Binding, side: str, always: bool) -> str:
    shape = ", ".join(_NAMES.get(d, str(d)) if isinstance(d, int) else str(d) for d in binding.shape)
    variant = "" if always else "optional"
    return f"| {side} | `{binding.name}` | {binding.dtype} | [{shape}] | {binding.meaning} | {variant} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
