"""Pages load nothing and run nothing, with any text in them."""

from html.parser import HTMLParser

from querator.spark.report.page import Page, PageTable, Picture, Section, cell_text, render

FOREIGN = "<script src='https://a.example/x.js'>1</script>\" onload=\"x &amp; \x00\x1b[31m"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


class Reader(HTMLParser):
    """Collects elements with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(text: str, *problems: str) -> Page:
    table = PageTable(text, (text, "count"), ((text, 1_234), (text, None)))
    picture = Picture(text, SVG, text)
    section = Section(text, text, ((text, text),), (table, picture))
    return Page(text, text, problems, (section,))


def test_foreign_text_is_text():
    read = Reader(render(page(FOREIGN, FOREIGN)))
    tags = [tag for tag, _ in read.elements]
    assert "script" not in tags
    assert {name for _, attributes in read.elements for name in attributes} <= {
        *("lang", "charset", "http-equiv", "content", "name", "class", "scope", "alt", "src"),
    }
    shown = FOREIGN.replace("\x00", "�").replace("\x1b", "�")
    # The text appears in title, heading, words and problem of the page; in title, words, fact,
    # value and picture of the section; in caption, first column and its two rows of the table.
    assert read.text.count(shown) == 13


def test_nothing_is_loaded():
    read = Reader(render(page("flights")))
    addresses = [value for _, attributes in read.elements if (value := attributes.get("src"))]
    assert len(addresses) == 1
    assert all(address.startswith("data:image/svg+xml;base64,") for address in addresses)
    policies = [
        attributes["content"] or ""
        for tag, attributes in read.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")


def test_problems_are_said_first():
    well, wrong = render(page("flights")), render(page("flights", "1 flight is lost"))
    assert "All counts balance." in well
    assert "All counts balance." not in wrong
    assert wrong.index("1 flight is lost") < wrong.index("<section>")


def test_cells():
    assert [cell_text(cell) for cell in (None, 12_345, 0.5, 1_234.5, "a")] == [
        *("–", "12,345", "0.50", "1,234", "a"),
    ]


def test_cells_are_not_broken_on_a_narrow_page():
    """A table that is too wide scrolls. A first column that may break anywhere would shrink to one
    letter a line.
    """
    html = render(page("flights"))
    assert "td { white-space: nowrap; }" in html
    assert ".table { overflow-x: auto;" in html
    assert "td:first-child { text-align: left; }" in html
