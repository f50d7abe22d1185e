"""The options of dflash-generate, as typer reads them."""

from pathlib import Path
from typing import Annotated

import typer

Bundle = Annotated[Path, typer.Argument(help="Folder that dflash-export wrote.", show_default=False)]
PromptText = Annotated[
    str | None, typer.Argument(help="What the user says; - reads it from stdin.", show_default=False)
]
PromptsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help='Many prompts, one object a line: {"prompt": "…"} or {"turns": ["…", "…"]}.',
        show_default=False,
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Generate with and without the drafter, and compare.")]
Raw = Annotated[bool, typer.Option("--raw", help="Complete the prompt as plain text, without the chat template.")]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
BlockSize = Annotated[
    int | None,
    typer.Option(
        help="Tokens checked at once; 1 is plain decoding. Default: for each pass what pays best.",
        show_default=False,
    ),
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id",
        metavar="ID",
        help="End the answer with this token instead of the model's own; may be given again.",
        show_default=False,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End the answer before this text; may be given again.", show_default=False),
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Hold the answer to a JSON schema.", show_default=False),
]
Regex = Annotated[
    str | None, typer.Option(help="Hold the answer to a regular expression, all of it.", show_default=False)
]
Grammar = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Hold the answer to a grammar, as Lark or GBNF.", show_default=False),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Answer with this or another --choice, nothing else.", show_default=False),
]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token; above, tokens are sampled.")]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is all.")]
TopP = Annotated[float, typer.Option(help="Sample among the likeliest tokens of this probability.")]
MinP = Annotated[float, typer.Option(help="Least probability, as a part of the likeliest token's.")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=BIAS", help="Add a number, or -inf, to a token's logit; may be given again.", show_default=False
    ),
]
BadTokenIds = Annotated[
    list[int] | None,
    typer.Option("--bad-token-id", metavar="ID", help="A token that never comes; may be given again.",
                 show_default=False),
]  # fmt: skip
MinTokens = Annotated[int, typer.Option(help="No stop token before so many tokens.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Divides the logits of tokens in the prompt or the answer; 1 is none.")
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Taken off a token's logit for each time it is in the answer; 0 is none.")
]
PresencePenalty = Annotated[float, typer.Option(help="Taken off the logit of any token in the answer; 0 is none.")]
Logprobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --json: each token's log-probability, and those of the N likeliest, at most 20.",
        show_default=False,
    ),
]
DraftTemperature = Annotated[
    float | None,
    typer.Option(
        help="The drafter draws its guesses at this temperature; 0: the likeliest. Default: half of the answer's, "
        "where the bundle's drafter can draw.",
        show_default=False,
    ),
]
DenoiseSteps = Annotated[int, typer.Option(help="Launches of the drafter for each block; the surest tokens stay.")]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same answers. Default: a fresh one.", show_default=False)
]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: all.", show_default=False)]
Backend = Annotated[str, typer.Option(help="Which engine runs the bundle.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object an answer on stdout, nothing else.")]
