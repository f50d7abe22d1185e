"""Bodies of requests: OpenAI's fields that are supported, and a few more that other servers have as well.

Everything else is refused by name: a field that changes nothing would be a lie.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt

from dflash_engines.sampling import MAX_SEED
from dflash_runtime.serving.http.fields import Fields
from dflash_runtime.serving.http.messages import AnyMessage

Number = Annotated[float, Field(strict=True)]
StopString = Annotated[str, Field(min_length=1)]
Bias = Annotated[float, Field(ge=-100, le=100, strict=True)]


class StreamOptions(Fields):
    """What a stream tells beside the text."""

    include_usage: StrictBool = False
    include_acceptance: StrictBool = False  # ours: how much of every step was drafted


class GenerationFields(Fields):
    """What both endpoints take. Temperatures and the like are OpenAI's, with OpenAI's defaults."""

    model: str
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    stop: StopString | Annotated[list[StopString], Field(min_length=1, max_length=4)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=MAX_SEED)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[Annotated[int, Field(ge=0)], Bias] = Field(default_factory=dict)
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # told to nobody
    response_format: dict[str, Any] | None = None
    # The rest is not OpenAI's, but common.
    top_k: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0)] = 1.0
    min_tokens: Annotated[StrictInt, Field(ge=0)] = 0
    stop_token_ids: list[StrictInt] | None = None
    block_size: Annotated[StrictInt, Field(ge=1)] | None = None  # 1 decodes without the drafter
    priority: Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)] = 0  # smaller goes first
    timeout: Annotated[Number, Field(gt=0)] | None = None  # seconds


class FunctionDefinition(Fields):
    """A tool that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON schema
    strict: StrictBool | None = None


class Tool(Fields):
    """Functions are the only kind of tools."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Fields):
    """By its name."""

    name: str


class NamedTool(Fields):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerationFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict
    )  # variables of the model's template, such as enable_thinking


class CompletionRequest(GenerationFields):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=128)]
        | Annotated[list[Annotated[list[StrictInt], Field(min_length=1)]], Field(min_length=1, max_length=128)]
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    echo: Literal[False] = False
