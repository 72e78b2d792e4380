"""A real Chromium without a window, and what tests do in a page."""

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """The browser, with a profile of its own; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """A dashboard in the browser."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def open(self, file: Path, choices: str = "") -> None:
        """Load a page, with what is chosen in its address, and wait until it is drawn."""
        self.browser.get("about:blank")
        self.browser.get(f"{file.resolve().as_uri()}#{choices}")
        self.wait_until_drawn()

    def reload(self) -> None:
        self.browser.refresh()
        self.wait_until_drawn()

    def wait_until_drawn(self) -> None:
        WebDriverWait(self.browser, 30).until(lambda _: self.js("return performance.getEntriesByName('drawn').length"))
        self.settle()

    def settle(self) -> None:
        """Wait until a change is drawn and in the address."""
        self.browser.execute_async_script("setTimeout(() => requestAnimationFrame(arguments[0]), 150)")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def resize(self, width: int, height: int = 900) -> None:
        """The window as the page sees it; Chromium's own window has a least width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Whether the user's system is light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, css: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        """The texts of the elements that can be seen."""
        return [element.text for element in self.find(css) if element.is_displayed()]

    def click(self, css: str) -> None:
        self.one(css).click()
        self.settle()

    def type(self, css: str, text: str) -> None:
        self.one(css).send_keys(text)
        self.settle()

    def choose(self, css: str, value: str) -> None:
        """Choose an option of a select, or a position of a slider."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event(arguments[2]))"
        self.js(script, self.one(css), value, "input" if self.one(css).get_attribute("type") == "range" else "change")
        self.settle()

    def hover(self, css: str, x: int = 0, y: int = 0) -> None:
        """Move the pointer to the middle of an element, or so far from it; scrolling afterwards would hide the box."""
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", self.one(css))
        self.settle()
        ActionChains(self.browser).move_to_element_with_offset(self.one(css), x, y).perform()
        self.settle()

    def drag(self, css: str, start: int, end: int) -> None:
        """Drag from one place to another, both from the middle of an element."""
        moves = ActionChains(self.browser).move_to_element_with_offset(self.one(css), start, 0).click_and_hold()
        moves.move_by_offset(end - start, 0).release().perform()
        self.settle()

    def download(self, css: str, folder: Path) -> Path:
        """Press a button that saves a file, and wait for the file."""
        self.browser.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder.resolve())}
        )
        before = set(folder.iterdir())
        self.click(css)

        def saved(_: Chrome) -> list[Path]:
            return [file for file in set(folder.iterdir()) - before if file.suffix in (".svg", ".csv")]

        return WebDriverWait(self.browser, 30).until(saved)[0]

    def lines(self) -> list[str]:
        """The curves of the first chart, as they are drawn."""
        script = "const chart = document.querySelector('svg.chart'); return [...chart.querySelectorAll('path.line')]"
        drawn: list[str] = self.js(script + ".map(path => path.getAttribute('d'))")
        return drawn

    def legend(self) -> list[str]:
        """The groups that the legend says are drawn."""
        return self.texts("#legend [aria-pressed=true]")

    def tip(self) -> tuple[str, dict[str, str]]:
        """Heading and rows of the box beside the pointer."""
        rows = zip(self.texts("#tip li span"), self.texts("#tip li b"), strict=True)
        return self.one("#tip strong").text, dict(rows)

    def column(self, number: int) -> list[str]:
        """A column of the table, from 1."""
        return self.texts(f"tbody td:nth-child({number})")


def row_of(run: Path, round: int) -> dict[str, float]:
    """One row of metrics.csv, read without fedlit."""
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["round"]) == round]
    return {name: float(text) for name, text in rows[0].items() if text}
