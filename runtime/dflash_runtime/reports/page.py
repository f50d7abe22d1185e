"""A page: headed sections of text, tables and drawings, written as Markdown or as one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells are text already."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Text, then tables, then drawings (SVG), which Markdown leaves out."""

    heading: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    drawings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report."""

    title: str
    sections: Sequence[Section]


def as_markdown(page: Page) -> str:
    """The page without its drawings."""
    lines = [f"# {page.title}", ""]
    for section in page.sections:
        lines += [f"## {section.heading}", ""]
        for paragraph in section.text:
            lines += [paragraph, ""]
        for table in section.tables:
            lines += [*_markdown_table(table), ""]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    rows = [table.headings, ["---"] * len(table.headings), *table.rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]


def as_html(page: Page) -> str:
    """One file: styles and drawings are inside, nothing is fetched."""
    environment = Environment(loader=PackageLoader("dflash_runtime.reports", "."), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html.jinja").render(page=page)
