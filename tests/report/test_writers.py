"""Markdown, LaTeX and HTML: whatever stands in a label, a path or a remark stays text."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from fedlit.report import latex, markdown
from fedlit.report.html import html
from fedlit.report.latex import latex as as_latex
from fedlit.report.markdown import markdown as as_markdown
from fedlit.report.page import Report, build_report
from fedlit.results.runs import read_run
from tests.report.folders import write_run

NASTY = "<script>alert('x')</script> & 100% of_it | $x^2$ `code` [a](b) \\input{x} ~ # ® 中 --- \"q\""
FOLDER = "a <b> & c|d (1) %_$"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two groups told apart by a nasty option, in folders with nasty names."""
    paths = [
        write_run(tmp_path / FOLDER, {"global/acc": [0.5], "dual/mean": [0.1]}, model={"name": NASTY}),
        write_run(tmp_path / "plain", {"global/acc": [0.6], "dual/mean": [0.1]}, model={"name": "plain"}),
    ]
    runs = [read_run(path) for path in paths]
    return build_report(runs, tmp_path / "out", metrics=["global/acc", "dual/mean"])


class Reader(HTMLParser):
    """Collects tags, links and text, and checks that what is opened is closed."""

    EMPTY = ("meta", "img", "link", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in self.EMPTY else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_well_formed_and_runs_nothing(report: Report) -> None:
    page = Reader(html(report))
    assert page.open == []
    assert page.all("script") == []
    assert page.all("b")
    assert NASTY in page.text
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_takes_nothing_from_elsewhere(report: Report) -> None:
    text = html(report)
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_every_number_opens_the_runs_behind_it(report: Report) -> None:
    page = Reader(html(report))
    targets = [button["popovertarget"] for button in page.all("button")]
    opened = [attributes["id"] for attributes in page.all("div") if "popover" in attributes]
    assert targets == opened
    assert len(targets) == len(set(targets))
    shown = [entry for grid in report.grids for row in grid.rows for entry in row if entry.cell]
    assert len(targets) == len(shown) == 6  # two groups, two metrics, and a difference of each


def test_links_lead_from_the_report_to_the_runs(report: Report, tmp_path: Path) -> None:
    page = Reader(html(report))
    links = {str(attributes["href"]) for attributes in page.all("a")}
    folders = [link for link in links if link.startswith("..")]
    reached = {(tmp_path / "out" / unquote(link)).resolve() for link in folders}
    assert reached == {tmp_path / FOLDER, tmp_path / "plain"}
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert anchors <= {str(attributes["id"]) for _, attributes in page.tags if "id" in attributes}


def test_remarks_stand_before_every_table(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", {"global/acc": [0.5]}, partition="one"),
        write_run(tmp_path / "b", {"global/acc": [0.6]}, partition="two", algorithm="FedBC"),
    ]
    report = build_report([read_run(path) for path in paths], tmp_path / "out")
    for text in (html(report), as_markdown(report)):
        assert "different partitions" in text
        first_table = min(place for sign in ("<table", "| ---") if (place := text.find(sign)) >= 0)
        assert text.index("different partitions") < first_table


def test_markdown_tables_keep_their_columns(report: Report) -> None:
    text = as_markdown(report)
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "<script" not in text
    assert f"({quote('../' + FOLDER)})" in text


def test_markdown_shows_the_value_of_every_run(report: Report) -> None:
    text = as_markdown(report)
    assert "<details>" in text
    assert ") 0.5" in text
    assert ") 0.6" in text


def plain_latex(text: str) -> str:
    """What is left when escaped signs are taken out."""
    return re.sub(r"\\[\\&%$#_{}]", "", text)


def test_latex_is_balanced_and_escaped(report: Report) -> None:
    text = "\n".join(line for line in as_latex(report).splitlines() if not line.startswith("%"))
    bare = plain_latex(text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#~]", bare)
    assert text.isascii()
    assert environments_close(text)
    assert r"\input" not in text
    assert all(line.count(" & ") == 3 for line in text.splitlines() if line.strip().startswith("FedAvg"))


def environments_close(text: str) -> bool:
    """Whether every environment is closed before the one around it."""
    open_now: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_now.append(name)
        elif not open_now or open_now.pop() != name:
            return False
    return not open_now


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5%", r"a\_b \& 5\%"),
        ("λ ± 1 − 2", r"$\lambda$ $\pm$ 1 $-$ 2"),
        (r"\x{y}^~", r"\textbackslash{}x\{y\}\textasciicircum{}\textasciitilde{}"),
        ("[*]", "{[}{*}]"),
        ("a--b", "a-{-}b"),
        ("Zürich 中", "Zürich U+4E2D"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_signs(text: str, escaped: str) -> None:
    assert latex.escape(text) == escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("*x* _y_ `z`", r"\*x\* \_y\_ \`z\`"),
        ("[a](b) $1$", r"\[a\](b) \$1\$"),
        ("two\n# lines", r"two \# lines"),
    ],
)
def test_markdown_signs(text: str, escaped: str) -> None:
    assert markdown.escape(text) == escaped


def test_a_long_table_goes_on_in_another(tmp_path: Path) -> None:
    names = [f"x/{number}" for number in range(latex.LONGEST + 1)]
    paths = [
        write_run(tmp_path / "a", {name: [0.5] for name in names}),
        write_run(tmp_path / "b", {name: [0.6] for name in names}, algorithm="FedBC"),
    ]
    report = build_report([read_run(path) for path in paths], tmp_path / "out", metrics=names)
    labels = re.findall(r"\\label\{tab:(.*?)\}", as_latex(report))
    assert labels == [
        *("synthetic-results", "synthetic-differences-1", "synthetic-differences-2"),
        "synthetic-hyperparameters",
    ]
