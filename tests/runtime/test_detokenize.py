from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_runtime.detokenize import ByteLevelDetokenizer, WindowDetokenizer, detokenizers
from tests.engines.scripted_bundle import byte_tokenizer


def byte_level_with_merges() -> Tokenizer:
    """Tokens of several bytes, some of which cut a character; an added token with characters of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("ð", "Ł"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("ĺ", "Ģ")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["<tool 工具>", "  "])
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As in Llama 2 and Gemma: word pieces with ▁ for the space, and bytes for what has no piece."""
    pieces = ["<unk>", "<s>", "▁", "▁the", "the", "s", "é", "▁你", "."]
    tokens = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    spaces = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    tokens = ["▁", "▁hello", "▁world", "!", "he", "llo"]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    tokens = ["hello", "##ing", "world", "##s", ",", "."]
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token=","))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def nested_byte_level() -> Tokenizer:
    """The byte-level decoder as a part of a sequence."""
    tokenizer = byte_level_with_merges()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return tokenizer


TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "byte level": byte_level_with_merges(),
    "byte level in a sequence": nested_byte_level(),
    "byte fallback": byte_fallback(),
    "metaspace": metaspace(),
    "word piece": word_piece(),
}


def pieces(tokenizer: Tokenizer, chunks: list[list[int]]) -> Iterator[str]:
    detokenizer = detokenizers(tokenizer)()
    for chunk in chunks:
        yield detokenizer.push(tuple(chunk))
    yield detokenizer.flush()


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_pieces_joined_are_the_whole_text(name: str, data: st.DataObject) -> None:
    """Any ids in any chunks: also halves of characters, bytes that are no UTF-8, and special tokens."""
    tokenizer = TOKENIZERS[name]
    ids = st.integers(0, tokenizer.get_vocab_size() - 1)
    chunks = data.draw(st.lists(st.lists(ids, max_size=4), max_size=12))
    whole = tokenizer.decode([token for chunk in chunks for token in chunk])
    assert "".join(pieces(tokenizer, chunks)) == whole


@pytest.mark.parametrize("name", ["byte level", "byte level in a sequence"])
@pytest.mark.parametrize("text", ["naïve 日本語", "👩‍👩‍👧‍👦 👍🏽", "e\u0301", "a\ufffdb", "𝄞𝄞"])
def test_no_piece_holds_part_of_a_character(text: str, name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    found = list(pieces(tokenizer, [[token] for token in ids]))
    assert "".join(found) == text
    assert all("\ufffd" not in piece for piece in found) or "\ufffd" in text


def test_a_character_comes_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode("é!").ids
    assert list(pieces(tokenizer, [[token] for token in ids])) == ["", "é", "!", ""]


def test_half_a_character_at_the_end_is_told_once() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode("a😀").ids[:-1]
    assert list(pieces(tokenizer, [[token] for token in ids])) == ["a", "", "", "", "\ufffd"]


def test_a_wrong_byte_spoils_a_run_of_byte_tokens_that_was_not_told_yet() -> None:
    """The decoder gives up the whole run, so none of it may have left before."""
    tokenizer = TOKENIZERS["byte fallback"]
    character = [tokenizer.get_vocab()[f"<0x{byte:02X}>"] for byte in "你".encode()]
    wrong, word = tokenizer.get_vocab()["<0xFF>"], tokenizer.get_vocab()["▁the"]
    ids = [word, *character, wrong, word]
    assert "".join(pieces(tokenizer, [[token] for token in ids])) == tokenizer.decode(ids)


def test_special_tokens_give_no_text() -> None:
    tokenizer = TOKENIZERS["byte level"]
    end = tokenizer.get_vocab()["<|end|>"]
    assert "".join(pieces(tokenizer, [[end], tokenizer.encode("the").ids, [end, end]])) == "the"


def test_a_special_token_that_is_asked_for_gives_its_name() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = [tokenizer.get_vocab()[token] for token in ("<|turn|>", "h", "<|end|>", "<|turn|>")]
    shown = detokenizers(tokenizer)(("<|turn|>", "<|of no tokenizer|>"))
    assert shown.push(tuple(ids)) + shown.flush() == "<|turn|>h<|turn|>"


def test_a_special_token_of_byte_fallback_that_is_asked_for() -> None:
    tokenizer = byte_fallback()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "</s>"])
    ids = [tokenizer.get_vocab()[token] for token in ("▁the", "[TOOL_CALLS]", "▁the", "</s>")]
    shown = detokenizers(tokenizer)(("[TOOL_CALLS]",))
    assert "".join([*map(shown.push, [tuple(ids[:2]), tuple(ids[2:])]), shown.flush()]) == "the[TOOL_CALLS] the"


def test_the_detokeniser_fits_the_decoder() -> None:
    assert isinstance(detokenizers(TOKENIZERS["byte level"])(), ByteLevelDetokenizer)
    assert isinstance(detokenizers(TOKENIZERS["byte fallback"])(), WindowDetokenizer)
