"""Thinking, calls and content told apart, however the text is cut into steps."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash_runtime.serving.http.chat_text import THINKING, ChatStyle, ChatText, Delta, message_of
from dflash_runtime.serving.http.tools import GRANITE, HERMES, LLAMA3, MISTRAL, PHI, ToolDialect, dialect_of, read_calls

THINK = THINKING[0]
CALL = '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}'
ARGUMENTS = {"a": 1, "b": [2, {"c": "}"}]}


def deltas(style: ChatStyle, pieces: list[str]) -> list[Delta]:
    text = ChatText(style)
    return [delta for piece in pieces for delta in text.push(piece)] + text.flush()


def message(style: ChatStyle, *pieces: str) -> dict[str, Any]:
    """Calls as names and arguments."""
    found = message_of(deltas(style, list(pieces)))
    assert found.pop("role") == "assistant"
    if "tool_calls" in found:
        calls = found["tool_calls"]
        assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
        found["tool_calls"] = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    return found


CASES: dict[str, tuple[ChatStyle, str, dict[str, Any]]] = {
    "plain": (ChatStyle(), " Hi <think>x</think>", {"content": " Hi <think>x</think>"}),
    "empty": (ChatStyle(), "", {"content": ""}),
    "thinks": (
        ChatStyle(thinking=THINK),
        "<think>\nHm, <b>?\n\n</think>\n\nYes.\n",
        {"content": "Yes.\n", "reasoning_content": "Hm, <b>?"},
    ),
    "begins inside": (
        ChatStyle(thinking=THINK, inside=THINK),
        "Hm.\n</think>\nYes.",
        {"content": "Yes.", "reasoning_content": "Hm."},
    ),
    "cut while thinking": (
        ChatStyle(thinking=THINK, inside=THINK),
        "Hm, so\nthat </thi",
        {"content": "", "reasoning_content": "Hm, so\nthat </thi"},
    ),
    "thinks nothing": (ChatStyle(thinking=THINK), "<think>\n\n</think>\n\nYes.", {"content": "Yes."}),
    "a false beginning": (ChatStyle(thinking=THINK), "a <thin> b <", {"content": "a <thin> b <"}),
    "hermes": (
        ChatStyle(dialect=HERMES),
        f"<tool_call>\n{CALL}\n</tool_call>",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "hermes, with content and thinking": (
        ChatStyle(dialect=HERMES, thinking=THINK),
        f"<think>Add.</think>Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>",
        {
            "content": "Let me see.\n",
            "reasoning_content": "Add.",
            "tool_calls": [("add", ARGUMENTS), ("add", ARGUMENTS)],
        },
    ),
    "hermes, one call wanted": (
        ChatStyle(dialect=HERMES, one_call=True),
        f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "hermes, a list": (
        ChatStyle(dialect=HERMES),
        f"<tool_call>[{CALL}, {CALL}]</tool_call>",
        {"content": None, "tool_calls": [("add", ARGUMENTS)] * 2},
    ),
    "hermes, not closed": (
        ChatStyle(dialect=HERMES),
        f"<tool_call>\n{CALL}",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "hermes, no JSON": (
        ChatStyle(dialect=HERMES),
        '<tool_call>{"name": "add", </tool_call>!',
        {"content": '<tool_call>{"name": "add", </tool_call>!'},
    ),
    "hermes, no name": (
        ChatStyle(dialect=HERMES),
        '<tool_call>{"arguments": {}}</tool_call>',
        {"content": '<tool_call>{"arguments": {}}</tool_call>'},
    ),
    "mistral": (
        ChatStyle(dialect=MISTRAL),
        f"[TOOL_CALLS] [{CALL}]",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "mistral, names first": (
        ChatStyle(dialect=MISTRAL),
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[CALL_ID]x9[ARGS]{"b": 2}'.replace("}[TOOL_CALLS]", "} "),
        {"content": None, "tool_calls": [("add", {"a": 1}), ("sub", {"b": 2})]},
    ),
    "llama 3": (
        ChatStyle(dialect=LLAMA3),
        '\n{"name": "add", "parameters": {"a": 1}}',
        {"content": None, "tool_calls": [("add", {"a": 1})]},
    ),
    "llama 3, two with a tag": (
        ChatStyle(dialect=LLAMA3),
        '<|python_tag|>{"name": "add", "parameters": {}}; {"name": "sub", "parameters": {"b": "2"}}',
        {"content": None, "tool_calls": [("add", {}), ("sub", {"b": "2"})]},
    ),
    "llama 3, JSON that is no call": (ChatStyle(dialect=LLAMA3), '{"a": 1}', {"content": '{"a": 1}'}),
    "llama 3, text": (ChatStyle(dialect=LLAMA3), "Let {x} be.", {"content": "Let {x} be."}),
    "phi": (
        ChatStyle(dialect=PHI),
        f"<|tool_call|>[{CALL}]<|/tool_call|>",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "granite": (
        ChatStyle(dialect=GRANITE),
        f"<|tool_call|>[{CALL}]",
        {"content": None, "tool_calls": [("add", ARGUMENTS)]},
    ),
    "forced": (
        ChatStyle(dialect=HERMES, calls_only=True),
        '{"name": "add", "arguments": {"a": "</tool_call> <tool_call>"}}',
        {"content": None, "tool_calls": [("add", {"a": "</tool_call> <tool_call>"})]},
    ),
    "arguments in a string": (
        ChatStyle(dialect=HERMES),
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        {"content": None, "tool_calls": [("add", {"a": 1})]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_whole(name: str) -> None:
    style, text, expected = CASES[name]
    assert message(style, text) == expected


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=20)
def test_in_pieces(name: str, data: st.DataObject) -> None:
    style, text, expected = CASES[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert message(style, *pieces) == expected


@pytest.mark.parametrize("name", CASES)
def test_by_characters(name: str) -> None:
    style, text, expected = CASES[name]
    assert message(style, *text) == expected


@given(st.text(alphabet="ab \n<>/think"), st.text(alphabet="ab \n{}[]<"))
def test_nothing_is_lost_but_white_space(reasoning: str, content: str) -> None:
    text = f"{reasoning}</think>{content}"
    assume(text.count("</think>") == 1 and "<think>" not in text)
    found = message(ChatStyle(thinking=THINK, inside=THINK), *text)
    assert found.get("reasoning_content", "") == reasoning.strip()
    assert found["content"] == content.lstrip()


def test_content_streams_at_once_and_calls_come_whole() -> None:
    style = ChatStyle(dialect=HERMES)
    found = deltas(style, list(f"Sure.<tool_call>{CALL}</tool_call>"))
    assert [delta for delta in found if "content" in delta] == [{"content": c} for c in "Sure."]
    assert len([delta for delta in found if "tool_calls" in delta]) == 1


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ('{"name": function name, "parameters": dictionary}', LLAMA3),
        ("<|tool_call|> <|/tool_call|>", PHI),
        ("<|tool_call|>", GRANITE),
        ("{{ tools }}", None),
    ],
)
def test_the_dialect_shows_in_the_template(template: str, dialect: ToolDialect | None) -> None:
    assert dialect_of(template) is dialect


@given(st.text(alphabet='{}[]",:nameargumts 0123'))
def test_reading_never_fails(text: str) -> None:
    found = read_calls(text)
    assert found is None or all(isinstance(json.loads(call.arguments), dict) for call in found)


def test_nesting_without_end_is_no_call() -> None:
    assert read_calls("[" * 100_000) is None
    assert read_calls('{"name": "a", "arguments": ' + "[" * 100_000) is None
