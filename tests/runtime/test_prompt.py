from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from dflash_engines.errors import RequestError
from dflash_runtime.chat_template import ChatTemplate
from dflash_runtime.prompt import PromptEncoder
from tests.engines.scripted_bundle import CHAT_TEMPLATE, byte_tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Puts a start token before plain text."""
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 1)])
    return tokenizer


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate(CHAT_TEMPLATE, {}))


def test_plain_text_gets_the_tokenizers_own_special_tokens(encoder: PromptEncoder, tokenizer: Tokenizer) -> None:
    ids = encoder.encode("hi")
    assert ids[0] == 1
    assert tokenizer.decode(list(ids)) == "hi"


def test_messages_get_the_templates_special_tokens_only(encoder: PromptEncoder, tokenizer: Tokenizer) -> None:
    ids = encoder.encode([{"role": "user", "content": "hi"}])
    text = tokenizer.decode(list(ids), skip_special_tokens=False)
    assert text == "<|turn|>user: hi<|end|><|turn|>assistant: "


def test_token_ids_are_taken_as_they_are(encoder: PromptEncoder) -> None:
    assert encoder.encode([5, 1, 0]) == (5, 1, 0)
    assert encoder.encode([]) == ()


@pytest.mark.parametrize("prompt", [None, 5, 1.5, [1, "a"], [True], [[1]], ["hi"], {"role": "user"}, b"hi"])
def test_any_other_type_is_refused(encoder: PromptEncoder, prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is text, a list of token ids, or a list of messages"):
        encoder.encode(prompt)


def test_half_a_surrogate_pair_is_refused(encoder: PromptEncoder) -> None:
    with pytest.raises(RequestError, match="not valid Unicode at character 1"):
        encoder.encode("a\ud83d")
    with pytest.raises(RequestError, match="not valid Unicode"):
        encoder.encode([{"role": "user", "content": "\ud83d"}])


def test_messages_without_a_template_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        PromptEncoder(tokenizer, None).encode([{"role": "user", "content": "hi"}])


def test_a_message_that_calls_tools_may_be_without_content(encoder: PromptEncoder) -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    encoder.encode([{"role": "assistant", "content": None, "tool_calls": [call]}])
    with pytest.raises(RequestError, match="message 0 has no text as its 'content'"):
        encoder.encode([{"role": "assistant", "content": None, "tool_calls": []}])
