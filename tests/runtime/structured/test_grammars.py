"""Masks against a search of all continuations, and random walks against an independent validator."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_engines.errors import RequestError
from dflash_runtime.structured.constraint import Constraint
from dflash_runtime.structured.grammars import Grammars, LlguidanceConstraint
from dflash_runtime.structured.response_format import structured_output

SPECIAL_TOKENS = ("<|end|>", "<|start|>", "<|stop|>")
END, START, STOP = range(3)
MERGES = [("a", "b"), ("b", "a"), ("ab", "a"), ("Ġ", "b"), ("Ã", "©"), ("a", "Ã")]
VOCAB_SIZE = 300  # more than the tokenizer has: a padded embedding
ONES = -1


def tokenizer() -> Tokenizer:
    """Bytes and a few merges, one of which ends with half a character."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL_TOKENS))
    return made


TOKENIZER = tokenizer()
GRAMMARS = Grammars(TOKENIZER, VOCAB_SIZE, END)


def _character(byte: int) -> str:
    """GPT-2's name of a byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in printable]
    return chr(byte) if byte in printable else chr(0x100 + others.index(byte))


BYTE_OF = {_character(byte): byte for byte in range(256)}
BYTES = {
    token_id: bytes(BYTE_OF[character] for character in token)
    for token, token_id in TOKENIZER.get_vocab().items()
    if token not in SPECIAL_TOKENS
}


def start(response_format: dict[str, Any], stop_token_ids: Iterable[int] = (STOP,)) -> LlguidanceConstraint:
    wanted = structured_output(response_format)
    assert wanted is not None
    return GRAMMARS.compile(wanted).start(tuple(stop_token_ids))


def token(text: str) -> int:
    return int(TOKENIZER.get_vocab()[text])


def allowed(mask: Any) -> set[int]:
    return {i for i in range(VOCAB_SIZE) if mask[i // 32] >> (i % 32) & 1}


def naive(done: bytes, texts: list[str], stop_token_ids: Iterable[int] = (STOP,)) -> set[int]:
    """Every token with which one of `texts` may go on."""
    whole = [text.encode() for text in texts]
    going_on = {token for token, more in BYTES.items() if any(text.startswith(done + more) for text in whole)}
    return going_on | (set(stop_token_ids) if done in whole else set())


TEXTS = st.lists(st.text("abé ", min_size=1, max_size=6), min_size=1, max_size=5)


def forced(done: bytes, texts: list[str]) -> bytes:
    """The bytes that come next whatever is chosen."""
    left = [text.encode()[len(done) :] for text in texts if text.encode().startswith(done)]
    first, last = min(left), max(left)
    return first[: next((i for i, byte in enumerate(first) if byte != last[i]), len(first))]


@given(texts=TEXTS, data=st.data())
def test_a_mask_allows_just_the_tokens_with_which_a_choice_goes_on(texts: list[str], data: st.DataObject) -> None:
    """Where only one text is possible, it may be held to the tokenizer's own tokens for it."""
    constraint, done = start({"type": "choice", "choice": texts}), b""
    while not constraint.complete:
        found, possible = allowed(constraint.masks([])[0]), naive(done, texts)
        assert found == possible or (forced(done, texts) and found and found < possible)
        drawn = data.draw(st.sampled_from(sorted(found)))
        if drawn == STOP:
            return
        constraint.commit(drawn)
        done += BYTES[drawn]
    assert naive(done, texts) == {STOP}  # complete: nothing but the end could follow
    assert done.decode() in texts


@given(texts=TEXTS, data=st.data())
def test_masks_of_a_draft_are_those_of_its_tokens_one_by_one(texts: list[str], data: st.DataObject) -> None:
    """Also when the draft is refused on the way, or goes on behind the end."""
    ids = TOKENIZER.encode(data.draw(st.sampled_from(texts))).ids
    known = data.draw(st.integers(0, len(ids) - 1))
    drafted = ids[known : data.draw(st.integers(known, len(ids)))]
    drafted += data.draw(st.lists(st.sampled_from([STOP, *BYTES]), max_size=3))
    constraint, one_by_one = (start({"type": "choice", "choice": texts}) for _ in range(2))
    for known_id in ids[:known]:
        constraint.commit(known_id)
        one_by_one.commit(known_id)
    masks = constraint.masks(drafted)
    assert masks.shape == (len(drafted) + 1, -(-VOCAB_SIZE // 32))
    for row, guess in enumerate([*drafted, STOP]):
        assert allowed(masks[row]) == allowed(one_by_one.masks([])[0])
        if guess == STOP or guess not in allowed(masks[row]):
            assert (masks[row + 1 :] == ONES).all()
            break
        one_by_one.commit(guess)
    assert (constraint.masks(drafted) == masks).all()  # looking ahead leaves no trace


def test_answers_of_one_grammar_do_not_meet() -> None:
    first, second = (start({"type": "choice", "choice": ["ab", "ba"]}) for _ in range(2))
    first.commit(token("b"))
    assert allowed(first.masks([])[0]) == {token("a")}
    assert allowed(second.masks([])[0]) == naive(b"", ["ab", "ba"])


@pytest.mark.parametrize("stops", [(), (STOP,), (STOP, START), (7, END)])
def test_only_the_requests_own_stop_tokens_end_an_answer(stops: tuple[int, ...]) -> None:
    constraint = start({"type": "regex", "regex": "a+"}, stops)
    assert not allowed(constraint.masks([])[0]) & {STOP, START, END, 7}
    constraint.commit(token("a"))
    assert allowed(constraint.masks([])[0]) & {STOP, START, END, 7} == set(stops)


def walk(constraint: Constraint, seed: int, longest: int = 300) -> str | None:
    """A random text that the masks allow; None when it doesn't end in time."""
    draw, ids = random.Random(seed), list[int]()
    while len(ids) < longest and not constraint.complete:
        drawn = draw.choice(sorted(allowed(constraint.masks([])[0])))
        if drawn == STOP:
            return TOKENIZER.decode(ids)
        constraint.commit(drawn)
        ids.append(drawn)
    return TOKENIZER.decode(ids) if constraint.complete else None


NAME = {"type": "string", "maxLength": 4}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": NAME, "n": {"type": "integer", "minimum": -3, "maximum": 12}},
     "required": ["a", "n"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["x", 1, None, True]}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "string", "pattern": "^[a-c]{2,3}$"}, {"type": "null"}]},
    {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "list": {"$ref": "#/$defs/list"}},
     "required": ["id", "list"], "additionalProperties": False,
     "$defs": {"list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}},
    {"const": {"k": [1, 2.5, "é\"\n"]}},
]  # fmt: skip


SCHEMA_OF_ONE = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_what_random_tokens_write_under_a_schema_is_valid(number: int) -> None:
    schema = SCHEMAS[number]
    inner = {"schema": schema}
    texts = [walk(start({"type": "json_schema", "json_schema": inner}), seed) for seed in range(12)]
    complete = [text for text in texts if text is not None]
    assert len(complete) > len(texts) // 2
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for text in complete:
        check.validate(json.loads(text))


@pytest.mark.parametrize(
    ("response_format", "right"),
    [
        ({"type": "regex", "regex": r"[ab]{2}-\d+!"}, lambda t: t[2] == "-" and set(t[:2]) <= {"a", "b"}),
        ({"type": "grammar", "grammar": 'start: "(" start ")" | "x"'}, lambda t: t.count("(") == t.count(")")),
        ({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}, lambda t: t.count("(") == t.count(")")),
        ({"type": "choice", "choice": ['say "é"', "\\n\n"]}, lambda t: t in ('say "é"', "\\n\n")),
        ({"type": "json_object"}, lambda t: isinstance(json.loads(t), dict)),
    ],
)
def test_random_tokens_keep_to_a_regex_a_grammar_and_choices(
    response_format: dict[str, Any], right: Callable[[str], bool]
) -> None:
    texts = [walk(start(response_format), seed) for seed in range(8)]
    complete = [text for text in texts if text is not None]
    assert complete
    assert all(right(text) for text in complete)


@pytest.mark.parametrize(
    ("response_format", "message"),
    [
        ({"type": "regex", "regex": "("}, "this regex can't be used: .*unclosed group"),
        ({"type": "regex", "regex": r"(a)\1"}, "this regex can't be used: .*backreferences are not supported"),
        ({"type": "regex", "regex": "(?=a)b"}, "this regex can't be used: .*look-around.* is not supported"),
        ({"type": "grammar", "grammar": "start: x"}, 'this grammar can\'t be used: .*unknown name: "x"'),
        ({"type": "grammar", "grammar": 'root ::= "a" ['}, "this grammar is not understood: .*Unexpected end"),
        ({"type": "grammar", "grammar": ""}, "this grammar is not understood: .*No 'root' rule"),
        *[
            ({"type": "json_schema", "json_schema": {"schema": schema}}, f"this json_schema can't be used: {message}")
            for schema, message in [
                ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: \\["uniqueItems"\\]'),
                ({"not": {"type": "string"}}, 'Unimplemented keys: \\["not"\\]'),
                ({"type": "strin"}, "Invalid type: strin"),
                ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
                ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable schema"),
                ({"type": "string", "format": "nope"}, "Unknown format: nope"),
            ]
        ],
    ],
)
def test_what_cannot_be_held_to_is_refused_in_one_line(response_format: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"response_format: {message}") as refused:
        start(response_format)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a":1}', True),
        ('{ "a" : 1 }', True),
        ('{\n\t"a": 1\n}', True),
        ('{\n\n        "a":\n1}', True),
        ('{\n\n\n"a": 1}', False),
        ("{" + " " * 2, False),
        ("{\n" + " " * 21, False),
    ],
)
def test_json_has_no_more_blanks_than_it_takes_to_be_read(text: str, right: bool) -> None:
    """A model that may write blanks for ever does, and its answer is cut."""
    constraint = start({"type": "json_schema", "json_schema": {"schema": SCHEMA_OF_ONE}})
    taken = True
    for byte in text:
        one = TOKENIZER.encode(byte).ids[0]
        taken = taken and one in allowed(constraint.masks([])[0])
        if taken:
            constraint.commit(one)
    assert taken == right


def test_a_refused_token_ends_the_answer_with_an_error() -> None:
    with pytest.raises(RequestError, match=r"can't be kept to its response_format: .*doesn't satisfy the grammar"):
        start({"type": "regex", "regex": "a"}).commit(token("b"))


def test_a_matcher_that_gave_up_allows_nothing() -> None:
    """It would allow the end: half an answer would look like a whole one."""
    constraint = start({"type": "regex", "regex": "a{5}"})
    with pytest.raises(RequestError):
        constraint.commit(token("b"))
    assert not constraint.complete
    assert not constraint.masks([]).any()
    assert constraint.fault is not None and "doesn't satisfy the grammar" in constraint.fault


def test_a_tokenizer_that_the_library_does_not_know_is_refused() -> None:
    other = Tokenizer(models.WordPiece({"hello": 0, "##ing": 1, "<|end|>": 2}, unk_token="hello"))
    other.decoder = decoders.WordPiece(cleanup=False)
    with pytest.raises(RequestError, match="can't be had with this model's tokenizer: can't determine decoder"):
        Grammars(other, 3, 2)


def test_the_same_format_is_compiled_once() -> None:
    wanted = structured_output({"type": "regex", "regex": "once"})
    assert wanted is not None
    assert GRAMMARS.compile(wanted) is GRAMMARS.compile(wanted)
