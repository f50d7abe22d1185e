"""Peers answer what plain decoding answers: they are given the same work."""

import pytest

from dflash_runtime.bench.peers import PeerChoice, load_peer, peer_names
from dflash_runtime.decoder import Decoder
from tests.export.conftest import ExportPair
from tests.export.pairs import FAMILY_CASES

PROMPT = [4 + (37 * i) % 251 for i in range(23)]
NEW_TOKENS = 24


@pytest.mark.parametrize("name", ["transformers", "transformers-prompt-lookup", "authors-loop"])
def test_torch_peers_write_the_same_tokens(name: str, export_pair: ExportPair) -> None:
    _, _, bundle = export_pair(FAMILY_CASES[0])
    peer = load_peer(PeerChoice(name=name, path=None), bundle, threads=1)
    assert not isinstance(peer, str)
    plain = Decoder.load(bundle.path).complete(PROMPT, max_new_tokens=NEW_TOKENS, block_size=1)
    run = peer.generate(PROMPT, NEW_TOKENS)
    assert run.token_ids == plain.token_ids and run.seconds > 0


def test_all_peers_are_known_by_name() -> None:
    assert {"llama.cpp", "onnxruntime-genai", "transformers"} <= set(peer_names())
    assert PeerChoice.parse("llama.cpp=model.gguf") == PeerChoice(name="llama.cpp", path="model.gguf")
