"""A model's own chat template, rendered as Hugging Face does. A template is code: it runs in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, ValidationError

from dflash_engines.bundle import Bundle
from dflash_engines.errors import BundleError, RequestError

Message = Mapping[str, Any]  # role, content, and what the template makes use of
TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_NOTHING: Mapping[str, Any] = {}


class ChatTemplate:
    """Renders chat messages to the text that the model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(find_undeclared_variables(environment.parse(source)))  # that it makes use of
        except TemplateSyntaxError as e:
            raise BundleError(f"the bundle's chat template can't be read: {e}") from e
        self.source = source
        self._special_tokens = dict(special_tokens)

    @classmethod
    def of(cls, bundle: Bundle) -> Self | None:
        """The bundle's template, or None when the model has none. Raises BundleError when it can't be read."""
        config = _read_config(bundle.file(CONFIG_FILE)) if bundle.has(CONFIG_FILE) else _Config()
        if bundle.has(TEMPLATE_FILE):
            source = _read_text(bundle.file(TEMPLATE_FILE))
        else:
            source = _default_template(config.chat_template)
        return cls(source, _special_tokens(config.model_extra or {})) if source else None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The prompt for the assistant's next turn. Raises RequestError when the template refuses.

        `variables` are the template's own, such as enable_thinking.
        """
        given = {"documents": None} | self._special_tokens | dict(variables)
        try:
            return self._template.render(given | {"messages": messages, "tools": tools, "add_generation_prompt": True})
        except (TemplateError, TypeError, KeyError, ValueError) as e:
            raise RequestError(f"the model's chat template refuses these messages: {e}") from e


class _NamedTemplate(BaseModel):
    name: str
    template: str


class _Config(BaseModel):
    """What is read of tokenizer_config.json; special tokens are among the other fields."""

    model_config = ConfigDict(extra="allow")
    chat_template: str | list[_NamedTemplate] | None = None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise BundleError(f"{file} is not UTF-8 text ({e}); export the pair again") from e


def _read_config(file: Path) -> _Config:
    try:
        return _Config.model_validate_json(_read_text(file))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, (file, *first["loc"])))
        raise BundleError(f"{where}: {first['msg']}; export the pair again") from e


def _default_template(declared: str | list[_NamedTemplate] | None) -> str:
    """tokenizer_config.json holds one template, or a list of named ones."""
    if isinstance(declared, list):
        return {entry.name: entry.template for entry in declared}.get("default", "")
    return declared or ""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on, each written as a string or as an object with its content."""
    return {
        name: text
        for name, value in config.items()
        if name.endswith("_token")
        and isinstance(text := value.get("content") if isinstance(value, dict) else value, str)
    }


def _environment() -> Environment:
    extensions: list[type[Extension]] = [loopcontrols, _Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what a training loss covers; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may name it
    return datetime.now().strftime(format)
