"""Tools from end to end: through the template, back as calls, and calls that are certain by a grammar."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.runtime.serving.http.conftest import PLAIN, Running, running, say, until
from tests.runtime.serving.http.parrot import write_parrot

TEMPLATE = (
    "{% if tools %}<|turn|>tools: {{ tools | tojson }} in <tool_call></tool_call> tags<|end|>{% endif %}"
    "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant: "
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
SUB: Any = {"type": "function", "function": {"name": "sub"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_parrot(tmp_path_factory.mktemp("hermes"), TEMPLATE)) as server:
        yield server


def test_a_call(server: Running) -> None:
    answer = server.client().chat.completions.create(
        model="parrot", messages=say(f"Let me see. {CALL}{CALL}"), tools=[ADD, SUB]
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    assert choice.message.tool_calls is not None
    assert [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls] == [  # type: ignore[union-attr]
        ("add", {"a": 1, "b": 2})
    ] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_a_streamed_call(server: Running) -> None:
    chunks = list(
        server.client().chat.completions.create(
            model="parrot", messages=say(f"Hm. {CALL}{CALL}"), tools=[ADD], stream=True
        )
    )
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert all(call.id and call.function and call.function.name == "add" for call in calls)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hm. "
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_one_call_at_a_time(server: Running) -> None:
    answer = server.client().chat.completions.create(
        model="parrot", messages=say(CALL + CALL), tools=[ADD], parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or []) == 1


@pytest.mark.parametrize("choice", ["none", None])
def test_without_tools_a_call_is_text(server: Running, choice: Any) -> None:
    options = {"tools": [ADD], "tool_choice": choice} if choice else {}
    answer = server.client().chat.completions.create(model="parrot", messages=say(CALL), **options)
    assert (answer.choices[0].message.content, answer.choices[0].message.tool_calls) == (CALL, None)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_is_certain(server: Running, choice: Any, stream: bool) -> None:
    """The model would rather say something else after the call; the grammar ends the answer."""
    strict = ADD | {"function": ADD["function"] | {"strict": True}}
    response = server.say(
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}} and so on',
        tools=[strict, SUB],
        tool_choice=choice,
        stream=stream,
    )
    assert response.status_code == 200, response.text
    if stream:
        chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert not any(delta.get("content") for delta in deltas)
    else:
        calls = response.json()["choices"][0]["message"]["tool_calls"]
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls] == [
        ("add", {"a": 1, "b": 2})
    ]


def test_the_result_of_a_call_goes_back_to_the_model(server: Running) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages: list[Any] = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "<say>three</say>"},
    ]
    answer = server.client().chat.completions.create(model="parrot", messages=messages, tools=[ADD])
    assert answer.choices[0].message.content == "three"
    spec = server.service.decoder.texts.encoder.render(
        [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]}]
    )  # fmt: skip
    assert '"arguments": {"a": 1, "b": 2}' in spec


def test_thinking_is_told_apart(tmp_path: Path) -> None:
    with running(write_parrot(tmp_path / "thinks", TEMPLATE.replace("<think>\n", "<think>"))) as server:
        thinks = server.say("<think>Hm.\n</think>\n\nYes.", chat_template_kwargs={"enable_thinking": True})
        message = thinks.json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        plain = server.say("Yes.").json()["choices"][0]["message"]
        assert plain == {"role": "assistant", "content": "Yes."}
        streamed = server.say("<think>Hm.\n</think>\n\nYes.", stream=True).text
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in streamed.splitlines() if "delta" in line]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
        assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
        until(lambda: server.idle)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tool_choice": ({"tool_choice": "required"}, "no tools are given"),
    "unknown function": (
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "mul"}}},
        "'mul', which is none of the tools",
    ),
    "strict": (
        {"tools": [ADD | {"function": ADD["function"] | {"strict": True}}]},
        "strict is kept only where a call is certain",
    ),
    "both": (
        {"tools": [ADD], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "can't be both a call and of a response_format",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused(server: Running, name: str) -> None:
    fields, message = REFUSED[name]
    response = server.say("hi", **fields)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_template_that_takes_no_tools(tmp_path: Path) -> None:
    with running(write_parrot(tmp_path / "plain", PLAIN)) as server:
        with pytest.raises(openai.BadRequestError, match="takes no tools") as refused:
            server.client().chat.completions.create(model="parrot", messages=say("hi"), tools=[ADD])
        assert refused.value.param == "tools"
