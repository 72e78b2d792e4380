"""The site is built without a warning, and has every page, every public name, every command and every figure."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import fedlit
from fedlit.cli.main import COMMANDS
from tests.conftest import NOT_DRAWN

pytest.importorskip("sphinx", reason="the site needs the extra `docs`")
pytest.importorskip("myst_parser", reason="the site needs the extra `docs`")
pytest.importorskip("furo", reason="the site needs the extra `docs`")

from sphinx.cmd.build import main as build  # noqa: E402  # it is there

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STRICT = ["-W", "--keep-going", "-q", "-b", "html"]
NOT_CLASSES = {"INITIAL", "RECEIVED", "ZEROS"}
pytestmark = pytest.mark.timeout(1500)  # half a minute alone; a machine that is shared by many takes its time


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of docs/ in this process; a warning is an error.

    Figures are planned and not rendered, and sources are not copied: `test_the_site_is_built_as_a_user_does` has both.
    """
    place, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("site")
    for path in ROOT.iterdir():
        if path.suffix == ".md":
            shutil.copy(path, place)  # pages include them, and their links are followed from where the file really is
        elif path != DOCS:
            (place / path.name).symlink_to(path)
    shutil.copytree(DOCS, place / "docs", ignore=shutil.ignore_patterns("made"))
    fewer = "extensions=myst_parser,sphinx.ext.autodoc,sphinx.ext.napoleon"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, path, **options: Path(path).write_bytes(NOT_DRAWN))
        patch.setattr(sys, "path", list(sys.path))
        assert build([*STRICT, "-D", fewer, str(place / "docs"), str(out)]) == 0
    sys.modules.pop("made")
    return out


@pytest.mark.slow
def test_the_site_is_built_as_a_user_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", *STRICT, str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "_modules" / "fedlit" / "client" / "cohort.html").is_file()


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = (site / "index.html").read_text()
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md") if "made" not in path.parts}
    assert len(pages) > 30
    inner = {page for page in pages if page.parent.name in ("algorithms", "reference", "results")}
    assert [str(page) for page in sorted(pages - inner) if page.name != "index.html" and str(page) not in menu] == []
    assert [str(page) for page in sorted(pages) if not (site / page).is_file()] == []


def test_the_api_has_every_public_name(site: Path) -> None:
    page = (site / "reference" / "api.html").read_text()
    shown = set(re.findall(r'id="fedlit\.(?:\w+\.)*(\w+)"', page))
    assert sorted(set(fedlit.__all__) - shown - NOT_CLASSES) == []


def test_the_command_line_page_has_every_command(site: Path) -> None:
    page = (site / "reference" / "command_line.html").read_text()
    assert [name for name in COMMANDS if f"usage: fedlit {name}" not in page] == []


def test_the_gallery_has_every_kind_of_figure(site: Path) -> None:
    page = (site / "gallery.html").read_text()
    listed = re.findall(r"^\| `([^`]+)`", (DOCS / "figures.md").read_text(), re.MULTILINE)
    words = {"<state>": r"(dual|tolerance)", "<option>": r"\w+", "<algorithm>": r"\w+"}
    patterns = {name: re.sub(r"<\w+>", lambda word: words[word[0]], name) for name in listed}
    drawn = re.findall(r'src="_images/(\w+)\.png"', page)
    missing = [name for name, pattern in patterns.items() if not any(re.fullmatch(pattern, own) for own in drawn)]
    assert missing == []
