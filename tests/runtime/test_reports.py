from dflash_runtime.reports.page import Page, Section, Table, as_html, as_markdown

PAGE = Page(
    title="a <b>",
    sections=[
        Section(
            heading="one",
            text=["x & y"],
            tables=[Table(headings=("a", "b"), rows=[("1|2", "fault")])],
            drawings=["<svg></svg>"],
        )
    ],
)


def test_markdown_has_text_and_tables() -> None:
    assert as_markdown(PAGE) == "# a <b>\n\n## one\n\nx & y\n\n| a | b |\n| --- | --- |\n| 1\\|2 | fault |\n"


def test_html_escapes_text_and_keeps_drawings() -> None:
    html = as_html(PAGE)
    assert "a &lt;b&gt;" in html and "x &amp; y" in html and "<svg></svg>" in html
    assert '<td class="fault">fault</td>' in html
