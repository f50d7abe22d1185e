"""Against `apply_chat_template` of transformers, and what it leaves to the caller."""

import json
from pathlib import Path

import pytest

from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, RequestError
from dflash_runtime.chat_template import ChatTemplate, Message
from tests.engines.scripted_bundle import byte_tokenizer, manifest, write_bundle, write_manifest

TEMPLATES = {
    "system by default": (
        "{% for message in messages %}"
        "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|system|>Be kind.\n' }}{% endif %}"
        "{{'<|' + message['role'] + '|>' + message['content'] + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
    "blocks on lines of their own": (
        "{%- set ns = namespace(last=-1) %}\n{{ bos_token }}\n{% for message in messages %}\n"
        "    {% if message.role == 'user' %}\n"
        "  {% set ns.last = loop.index0 %}\nUser: {{ message.content | trim }}\n"
        "    {% else %}\n{{ message.role }}: {{ message.content }}{{ eos_token }}\n    {% endif %}\n"
        "{% endfor %}\nlast={{ ns.last }}{% if add_generation_prompt %}\nassistant:{% endif %}"
    ),
    "JSON": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} {{ tools is none }}",
    "loop controls": (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    ),
    "date": "{{ strftime_now('%Y') }}",
}
CONVERSATIONS: dict[str, list[Message]] = {
    "one turn": [{"role": "user", "content": "  <b>Größe</b> & 'quotes'  "}],
    "several turns": [
        {"role": "system", "content": "You're terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.\n"},
        {"role": "user", "content": "你好"},
    ],
}
SPECIAL_TOKENS = {"bos_token": "<|start|>", "eos_token": "<|end|>"}

TOOLS_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% if enable_thinking is defined and enable_thinking is false %}quick{% endif %}{{ messages[0].content }}"
)
TOOL = {"type": "function", "function": {"name": "größe", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_tools_and_variables_of_the_template_are_transformers(
    tools: list[dict[str, object]] | None, variables: dict[str, bool]
) -> None:
    transformers = pytest.importorskip("transformers")
    messages = CONVERSATIONS["one turn"]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=TOOLS_TEMPLATE, tokenize=False, **variables
    )
    template = ChatTemplate(TOOLS_TEMPLATE, {})
    assert template.render(messages, tools, variables) == expected
    assert {"tools", "enable_thinking"} <= template.variables


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_the_one_transformers_makes(name: str, conversation: str) -> None:
    transformers = pytest.importorskip("transformers")
    messages = CONVERSATIONS[conversation]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **SPECIAL_TOKENS)
    expected = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert ChatTemplate(TEMPLATES[name], SPECIAL_TOKENS).render(messages) == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ messages[7].content }}", "refuses these messages"),
        ("{{ messages.__class__.__mro__ }}", "refuses these messages"),  # the sandbox
    ],
)
def test_messages_that_the_template_refuses_are_a_request_error(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        ChatTemplate(template, {}).render([{"role": "user", "content": "Hi"}])


def test_a_template_with_a_syntax_error_is_a_bundle_error() -> None:
    with pytest.raises(BundleError, match="chat template can't be read"):
        ChatTemplate("{% for %}", {})


def bundle_with(folder: Path, config: dict[str, object], jinja: str | None) -> Bundle:
    write_bundle(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    write_manifest(folder, manifest())
    return Bundle.open(folder)


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]


@pytest.mark.parametrize(
    ("config", "jinja", "expected"),
    [
        ({"chat_template": "config"}, None, "config"),
        ({"chat_template": NAMED}, None, "named"),
        ({"chat_template": "config"}, "file", "file"),
        ({"bos_token": {"content": "<s>", "special": True}}, "{{ bos_token }}", "<s>"),
        ({"bos_token": "<s>", "pad_token": None}, "{{ bos_token }}{{ pad_token }}", "<s>"),
    ],
)
def test_where_the_template_comes_from(
    tmp_path: Path, config: dict[str, object], jinja: str | None, expected: str
) -> None:
    template = ChatTemplate.of(bundle_with(tmp_path / "bundle", config, jinja))
    assert template is not None
    assert template.render([]) == expected


def test_a_model_may_have_no_template(tmp_path: Path) -> None:
    assert ChatTemplate.of(bundle_with(tmp_path / "bundle", {"chat_template": None}, None)) is None
