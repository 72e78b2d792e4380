"""The page: template, style and script of this folder, and the data, put into one file."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedlit.files import write_text
from fedlit.report.colours import TONES
from fedlit.report.dashboard.content import Content, content_of
from fedlit.report.html import template, trusted
from fedlit.results.runs import Run

HERE = Path(__file__).parent
SCRIPTS = (
    *("dom", "format", "state", "data", "xaxis", "selection", "series", "axes", "tip", "gestures", "linechart"),
    *(
        "standalone",
        "download",
        "choices",
        "sidebar",
        "curves",
        "gaps",
        "gaptable",
        "extremes",
        "finals",
        "userrows",
        "userchart",
        "users",
    ),
    *("pairrows", "pairchart", "pairs", "main"),
)
"""The files of js/ in the order in which they stand in the page: each after those that it imports."""
_IMPORT = re.compile(r'^import (\{.*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def write_dashboard(runs: Sequence[Run], out: Path) -> None:
    """Write the runs as one self-contained HTML file."""
    write_text(out, page_of(content_of(runs)))


def page_of(content: Content) -> str:
    """The whole page. Trusted are style and script, which are fedlit's own, and the index, which has no `<`."""
    style, script = template(HERE / "style.css").render(tones=trusted(tone_rules())), joined_script()
    return template(HERE / "page.html").render(
        policy=trusted(policy(style, script)),
        style=trusted(style),
        script=trusted(script),
        index=trusted(index_of(content)),
        blocks=content.blocks,
    )


def tone_rules() -> str:
    """The colours of groups, which are those of the reports."""
    return "\n".join(
        f".tone-{number} {{ color: light-dark({tone.light}, {tone.dark}); }}" for number, tone in enumerate(TONES)
    )


def joined_script() -> str:
    """One script out of the files of js/."""
    return "\n".join(in_one_scope(name, (HERE / "js" / f"{name}.js").read_text(encoding="utf-8")) for name in SCRIPTS)


def in_one_scope(name: str, source: str) -> str:
    """A module as a function that returns its exports: an inline script cannot import another one."""
    exports = ", ".join(exported for _, exported in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_js;", source))
    return f"const {name}_js = (() => {{\n{body}return {{ {exports} }};\n}})();\n"


def policy(style: str, script: str) -> str:
    """The content security policy: this style and this script and nothing else, from nowhere else."""
    return (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """A source expression that allows exactly this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def index_of(content: Content) -> str:
    """The index as JSON in an element that no browser runs or shows; a `<` in it would end the element."""
    return json.dumps(content.index, allow_nan=False).replace("<", "\\u003c")
