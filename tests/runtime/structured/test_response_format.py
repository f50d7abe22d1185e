import json

import pytest

from dflash_engines.errors import RequestError
from dflash_runtime.structured.response_format import StructuredOutput, structured_output

SCHEMA = {"type": "object", "properties": {"a": {"const": "é"}}}


@pytest.mark.parametrize("response_format", [None, {"type": "text"}])
def test_free_text_asks_for_nothing(response_format: object) -> None:
    assert structured_output(response_format) is None


def test_a_schema_comes_as_openai_has_it() -> None:
    inner = {"name": "answer", "description": "…", "strict": True, "schema": SCHEMA}
    found = structured_output({"type": "json_schema", "json_schema": inner})
    assert found is not None
    assert (found.kind, json.loads(found.source)) == ("json_schema", SCHEMA)


def test_any_object_of_json() -> None:
    found = structured_output({"type": "json_object"})
    assert found is not None
    assert (found.kind, json.loads(found.source)) == ("json_schema", {"type": "object"})


@pytest.mark.parametrize(
    ("response_format", "kind", "source"),
    [
        ({"type": "regex", "regex": "a+"}, "regex", "a+"),
        ({"type": "grammar", "grammar": "start: x"}, "grammar", "start: x"),
        ({"type": "choice", "choice": ["yes", "no"]}, "choice", '["yes", "no"]'),
    ],
)
def test_the_other_types_hold_their_source(response_format: object, kind: str, source: str) -> None:
    assert structured_output(response_format) == StructuredOutput(kind=kind, source=source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("response_format", "message"),
    [
        ("json_object", "must be an object with a \"type\", not 'json_object'"),
        ({}, "has type None; known are text, json_object, json_schema, regex, grammar, choice"),
        ({"type": ["regex"]}, r"has type \['regex'\]"),
        ({"type": "xml"}, "has type 'xml'"),
        ({"type": "regex"}, "of type 'regex' needs the key \"regex\""),
        ({"type": "regex", "pattern": "a"}, "has the unknown key 'pattern'; known are regex, type"),
        ({"type": "json_object", "schema": {}}, "has the unknown key 'schema'; known are type"),
        ({"type": "regex", "regex": 5}, "'regex' must be a string, not 5"),
        ({"type": "grammar", "grammar": None}, "'grammar' must be a string, not None"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, '"json_schema" must be an object with a "schema"'),
        ({"type": "json_schema", "json_schema": {"schema": False}}, '"json_schema" must be an object with a "schema"'),
        ({"type": "json_schema", "json_schema": SCHEMA}, '"json_schema" must be an object with a "schema"'),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "strikt": True}}, "unknown key 'strikt'"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": float("nan")}}}, "the schema is not JSON"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": {1, 2}}}}, "the schema is not JSON"),
        ({"type": "choice", "choice": []}, "'choice' must be a list of texts, none of them empty"),
        ({"type": "choice", "choice": "ab"}, "'choice' must be a list"),
        ({"type": "choice", "choice": ["a", ""]}, "'choice' must be a list"),
        ({"type": "choice", "choice": [1]}, "'choice' must be a list"),
    ],
)
def test_anything_else_is_refused_by_name(response_format: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        structured_output(response_format)
