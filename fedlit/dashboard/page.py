"""The page: template, style and script of this folder, and the data, put into one file."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedlit.dashboard.content import Content, content_of
from fedlit.results import Run
from fedlit.run import RunFolder

HERE = Path(__file__).parent
SCRIPTS = (
    *("dom", "format", "state", "data", "xaxis", "selection", "series", "axes", "tip", "gestures", "linechart"),
    *("sidebar", "curves", "finals", "userrows", "userchart", "users", "main"),
)
"""The files of js/ in the order in which they stand in the page: each after those that it imports."""
_IMPORT = re.compile(r'^import (\{.*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def write_dashboard(runs: Sequence[Run], out: Path) -> None:
    """Write the runs as one self-contained HTML file."""
    RunFolder(out.parent).write_text(out, page_of(content_of(runs)))


def page_of(content: Content) -> str:
    """The whole page. What runs may have named comes last, so that no placeholder can be smuggled in."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    script = joined_script()
    page = (HERE / "page.html").read_text(encoding="utf-8")
    for name, text in {"policy": policy(style, script), "style": style, "script": script}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    before, after = page.split("{{data}}")
    return "".join([before, *data_elements(content), after])


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


def data_elements(content: Content) -> list[str]:
    """The data as elements that no browser runs or shows; a `<` in them would end the element."""
    index = json.dumps(content.index, allow_nan=False).replace("<", "\\u003c")
    blocks = [f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in content.blocks.items()]
    return [f'<script type="application/json" id="index">{index}</script>\n', *blocks]
