import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_runtime import comparison
from dflash_runtime.cli import report
from dflash_runtime.cli.generate import main
from dflash_runtime.completion import Step
from tests.engines.scripted_bundle import BLOCK_SIZE, MAX_LEN, byte_tokenizer
from tests.engines.scripted_pair import STOP_TOKEN_IDS, plain_answer

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(scripted_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process; gives its exit code, stdout and stderr."""

    def run(*arguments: str, bundle: str = str(scripted_folder)) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dflash-generate", bundle, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def text_of(prompt: list[int], new: int) -> str:
    tokens, reason = plain_answer(prompt, new, STOP_TOKEN_IDS, MAX_LEN)
    return byte_tokenizer().decode(tokens[:-1] if reason == "stop" else tokens)


def encoded(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer().encode(text).ids
    return ids


def chat(text: str) -> list[int]:
    return encoded(f"<|turn|>user: {text}<|end|><|turn|>assistant: ")


def test_a_prompt_is_a_turn_of_the_user(run: Run) -> None:
    code, out, err = run("hi", "--max-new-tokens", "6")
    assert (code, out) == (0, text_of(chat("hi"), 6) + "\n")
    assert "tokens/s" in err


def test_raw_completes_plain_text(run: Run) -> None:
    code, out, _ = run("hi", "--raw", "--max-new-tokens", "6")
    assert (code, out) == (0, text_of(encoded("hi"), 6) + "\n")


def test_a_dash_reads_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\té\n".encode())))
    code, out, _ = run("-", "--raw", "--max-new-tokens", "6")
    assert (code, out) == (0, text_of(encoded("a\té\n"), 6) + "\n")


def test_stdin_that_is_not_text_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    code, _, err = run("-")
    assert code == 2
    assert "stdin is not UTF-8 text" in err
    assert err.count("\n") == 1


def test_json_is_one_object_and_nothing_else(run: Run) -> None:
    code, out, err = run("hi", "--json", "--max-new-tokens", "6", "--block-size", "1")
    fields = json.loads(out)
    assert (code, err) == (0, "")
    assert fields["text"] == text_of(chat("hi"), 6)
    assert fields["acceptance_length"] == 1.0
    assert fields["seconds"]["draft"] == 0.0


def test_compare_tells_both_speeds_and_that_the_texts_are_identical(run: Run) -> None:
    code, out, err = run("hi", "--compare", "--max-new-tokens", "8")
    assert (code, out.rstrip("\n")) == (0, text_of(chat("hi"), 8))
    assert "identical" in err and "ratio" in err


def test_compare_as_json(run: Run) -> None:
    code, out, err = run("hi", "--compare", "--json", "--max-new-tokens", "8")
    fields = json.loads(out)
    assert (code, err) == (0, "")
    assert fields["identical"] is True
    assert fields["plain"]["token_ids"] == fields["token_ids"]
    assert fields["speed_ratio"] > 0


def test_one_token_has_no_speed_to_compare(run: Run) -> None:
    code, out, _ = run("hi", "--compare", "--json", "--max-new-tokens", "1")
    assert (code, json.loads(out)["speed_ratio"]) == (0, None)
    code, _, err = run("hi", "--compare", "--max-new-tokens", "1")
    assert code == 0
    assert " - " in err


def test_different_texts_exit_with_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison.Comparison, "identical", property(lambda self: False))
    code, _, err = run("hi", "--compare", "--max-new-tokens", "4")
    assert code == 3
    assert "different" in err


def write_lines(file: Path, *lines: object) -> Path:
    """Bytes are written as they are."""
    file.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return file


def test_many_prompts_with_turns_that_follow_each_other(run: Run, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "p.jsonl", {"prompt": "a"}, b"", {"turns": ["b", "c"], "id": 3})
    code, out, _ = run("--prompts", str(file), "--json", "--max-new-tokens", "3")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [found["prompt"] for found in answers] == ["a", "b", "c"]
    first = text_of(chat("b"), 3)
    both = f"<|turn|>user: b<|end|><|turn|>assistant: {first}<|end|><|turn|>user: c<|end|><|turn|>assistant: "
    assert answers[2]["prompt_tokens"] == len(encoded(both))


def test_only_a_newline_ends_a_line_of_a_file(run: Run, tmp_path: Path) -> None:
    """As other programs write it: a byte order mark, CRLF, and separators of Unicode inside of the text."""
    text = "a\u2028b\u0085c"
    lines = (json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in (text, "d"))
    file = tmp_path / "p.jsonl"
    file.write_bytes("\ufeff".encode() + "".join(f"{line}\r\n" for line in lines).encode())
    code, out, _ = run("--prompts", str(file), "--json", "--max-new-tokens", "1")
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.rstrip("\n").split("\n")] == [text, "d"]


def test_a_fault_in_a_later_line_tells_its_number(run: Run, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "p.jsonl", {"prompt": "a\u2028"}, b"", b'{"prompt": "\xff"}')
    code, _, err = run("--prompts", str(file))
    assert code == 2
    assert "p.jsonl:3: not UTF-8 text" in err


def test_a_prompt_of_a_file_that_is_refused_is_named(run: Run, tmp_path: Path) -> None:
    """After the answers to those before it, so the message alone must tell which one it was."""
    file = write_lines(tmp_path / "p.jsonl", {"prompt": "a"}, b"", {"turns": ["b", "x" * 99]}, {"prompt": "c"})
    for mode in ([], ["--compare"]):
        code, out, err = run("--prompts", str(file), "--json", "--max-new-tokens", "3", *mode)
        assert (code, len(out.splitlines())) == (2, 2)
        assert err.startswith(f"error: {file}:3: the prompt has ")
        assert err.count("\n") == 1


def test_stop_may_be_given_again(run: Run) -> None:
    whole = text_of(chat("hi"), 8)
    code, out, _ = run("hi", "--max-new-tokens", "8", "--stop", whole[5:7], "--stop", whole[2:4])
    assert (code, out) == (0, whole[: whole.find(whole[2:4])] + "\n")


def test_a_stop_token_takes_the_place_of_the_models_own(run: Run) -> None:
    tokens, _ = plain_answer(chat("hi"), 8, STOP_TOKEN_IDS, MAX_LEN)
    code, out, _ = run("hi", "--max-new-tokens", "8", "--stop-token-id", str(tokens[3]), "--json")
    fields = json.loads(out)
    first = tokens.index(tokens[3])
    assert (code, fields["token_ids"], fields["finish_reason"]) == (0, tokens[: first + 1], "stop")


def test_the_answer_is_one_of_the_choices(run: Run) -> None:
    code, out, _ = run("hi", "--choice", "yes", "--choice", "yet", "--compare")
    assert (code, out) == (0, "yes\n\n")  # none of which the scripted pair would write: the first token in order


def test_a_schema_a_regex_and_a_grammar(run: Run, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps({"const": {"é": 1}}), encoding="utf-8")
    grammar.write_text('start: "a" "b"')
    assert run("hi", "--regex", "[x]{3}")[1] == "xxx\n"
    assert run("hi", "--grammar", str(grammar))[1] == "ab\n"
    assert run("hi", "--json-schema", str(schema), "--max-new-tokens", "40")[0] == 0


def test_structured_output_without_its_package_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setitem(sys.modules, "llguidance.numpy", None)
    monkeypatch.delitem(sys.modules, "dflash_runtime.structured.grammars", raising=False)
    code, _, err = run("hi", "--regex", "a")
    assert code == 2
    assert "response_format needs the package 'llguidance" in err
    assert "pip install 'dflash-trt[structured]'" in err
    assert err.count("\n") == 1


def test_the_total_of_several_comparisons(run: Run, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"})
    code, _, err = run("--prompts", str(file), "--compare", "--max-new-tokens", "5")
    assert code == 0
    assert "all" in err and "10" in err


BAD_FILES = {
    "not JSON": (b"{", "p.jsonl:1: not valid JSON"),
    "not text": (b"\xff\xfe{}", "p.jsonl:1: not UTF-8 text"),
    "nested too deeply": (b"[" * 100_000, "p.jsonl:1: not valid JSON"),
    "no prompt": ({"text": "x"}, 'p.jsonl:1: expected an object with "turns"'),
    "turns of numbers": ({"turns": [1]}, "expected an object"),
    "a list": ([1], "expected an object"),
    "empty": (b"", "holds no prompt"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_prompts_file_is_one_line(run: Run, tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    code, out, err = run("--prompts", str(write_lines(tmp_path / "p.jsonl", content)))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give either PROMPT"),
        (["hi", "--prompts", "x.jsonl"], 2, "give either PROMPT"),
        (["--prompts", "/no/such.jsonl"], 2, "can't read /no/such.jsonl"),
        (["hi", "--max-new-tokens", "0"], 2, "max_new_tokens must be at least 1, not 0"),
        (["hi", "--block-size", "99"], 2, f"block_size must be within 1..{BLOCK_SIZE}"),
        (["hi", "--temperature", "-1"], 2, "temperature must be a finite number from 0, not -1"),
        (["hi", "--temperature", "1", "--top-p", "0"], 2, "top_p must be a number above 0"),
        (["hi", "--temperature", "1"], 2, "no program 'accept_sampling'"),
        (["hi", "--regex", "("], 2, "this regex can't be used"),
        (["hi", "--regex", "a", "--choice", "b"], 2, "give only one of --json-schema, --regex"),
        (["hi", "--json-schema", "/no/such.json"], 2, "can't read /no/such.json"),
        (["hi", "--json-schema", "/dev/null"], 2, "/dev/null is not valid JSON"),
        (["hi", "--logit-bias", "5"], 2, "--logit-bias must be a token id, = and a number, such as 42=-5, not '5'"),
        (["hi", "--logit-bias", "a=1"], 2, "--logit-bias must be a token id"),
        (["hi", "--logit-bias", "5=nan"], 2, "logit_bias[5] must be a number, or -inf, not nan"),
        (["hi", "--logit-bias", "5=1", "--logit-bias", "5=2"], 2, "--logit-bias names token 5 twice"),
        (["hi", "--logit-bias", "99999=1"], 2, "logit_bias holds token id 99999, outside of the vocabulary"),
        (["hi", "--bad-token-id", "99999"], 2, "bad_token_ids holds token id 99999, outside of the vocabulary"),
        (["hi", "--stop-token-id", "99999"], 2, "stop_token_ids holds token id 99999, outside of the vocabulary"),
        (["hi", "--min-tokens", "-1"], 2, "min_tokens must be a number of tokens, not -1"),
        (["hi", "--repetition-penalty", "0"], 2, "repetition_penalty must be a number within 0.001..1000"),
        (["hi", "--logprobs", "2"], 2, "--logprobs is only shown with --json"),
        (["hi", "--logprobs", "21", "--json"], 2, "logprobs must be None or a whole number within 0..20"),
        (["hi", "--presence-penalty", "1"], 2, "no program 'accept_"),
        (["x" * 99], 2, f"this engine holds {MAX_LEN}"),
        (["hi", "--backend", "magic"], 1, "no backend 'magic'; installed are ["),
    ],
)
def test_bad_input_is_one_line_and_a_code(run: Run, arguments: list[str], code: int, message: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_missing_bundle_is_one_line(run: Run, tmp_path: Path) -> None:
    code, _, err = run("hi", bundle=str(tmp_path / "nowhere"))
    assert code == 2
    assert "no such folder" in err
    assert err.count("\n") == 1


def test_an_unknown_option_is_a_usage_error(run: Run) -> None:
    assert run("hi", "--colour")[0] == 2


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_shows_examples_and_exit_codes(run: Run, option: str) -> None:
    code, out, _ = run(option)
    assert code == 0
    assert 'dflash-generate build/demo "Why is the sky blue?"' in out
    assert "3 outputs differ" in out


def test_accepted_tokens_are_green_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {"token_ids": (1, 2), "acceptance_length": 2, "finish_reason": None}
    report.show_in_colour(Step(text="drafted own", accepted=1, accepted_text="drafted", **fields))
    report.show_in_colour(Step(text=" alone", accepted=0, accepted_text="", **fields))
    assert capsys.readouterr().out == "\x1b[32mdrafted\x1b[0m own alone"


def test_a_pipe_gets_no_colour_codes(run: Run) -> None:
    _, out, _ = run("hi", "--max-new-tokens", "8")
    assert "\x1b" not in out


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert report.stdout_has_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not report.stdout_has_colours()
