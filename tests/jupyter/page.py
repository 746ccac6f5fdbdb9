"""Notebooks of a JupyterLab in a headless browser, used as people use them."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

LOGS = Path(__file__).resolve().parents[2] / "target" / "test-logs"

# How long a page may take, in seconds, while the machine does other things.
PATIENCE = 120

# The page asks whether people want news, and draws only the cells that are in view; with these files in Jupyter's
# folder of settings it does neither.
PREFERENCES = {
    "labconfig/page_config.json": '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}',
    "lab/user-settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
}

CHROMIUM = """
    --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --window-size=1000,900 --force-device-scale-factor=1
"""


class Page:
    """A notebook in a browser."""

    def __init__(self, driver: WebDriver, patience: float) -> None:
        self.driver = driver
        self.patience = patience

    def open(self, address: str, token: str, notebook: str) -> None:
        """Open a notebook of a server with its token, and wait until its kernel is ready."""
        self.driver.get(f"{address}/lab/tree/{notebook}?reset&token={token}")
        self.wait_for("return document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')")
        self.wait_for("return document.querySelector('.jp-NotebookPanel .jp-Spinner') === null")

    def cells(self) -> list[WebElement]:
        """Return the cells with code."""
        return self.driver.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell")

    def run(self, cell: WebElement) -> None:
        """Run a cell."""
        editor = cell.find_element(By.CSS_SELECTOR, ".cm-content")
        self.script("arguments[0].scrollIntoView({block: 'center'})", editor)
        editor.click()
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()

    def wait_for_text(self, cell: WebElement, selector: str, words: str) -> None:
        """Wait until some part of a cell has these words."""
        self.wait_for(
            "return [...arguments[0].querySelectorAll(arguments[1])].some(it => it.innerText.includes(arguments[2]))",
            cell,
            selector,
            words,
        )

    def take_picture(self, cell: WebElement, file: Path) -> None:
        """Save how the notebook looks from this cell on."""
        file.parent.mkdir(parents=True, exist_ok=True)
        ActionChains(self.driver).send_keys(Keys.ESCAPE).key_down(Keys.CONTROL).send_keys("b").key_up(
            Keys.CONTROL
        ).perform()
        self.wait_for("return document.querySelector('#jp-left-stack').classList.contains('lm-mod-hidden')")
        self.script(
            "document.activeElement.blur(); arguments[0].querySelector('.cm-scroller').scrollLeft = 0;"
            " arguments[0].scrollIntoView({block: 'start'})",
            cell,
        )
        self.driver.find_element(By.CSS_SELECTOR, ".jp-NotebookPanel").screenshot(str(file))
        assert file.stat().st_size > 10_000

    def script(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something true."""
        condition: Callable[[WebDriver], Any] = lambda _: self.script(script, *arguments)  # noqa: E731
        return WebDriverWait(self.driver, self.patience, poll_frequency=0.1).until(condition, f"never true: {script}")


def run_example(page: Page) -> WebElement:
    """Run examples/ronde.ipynb, which is open, to its end; return the cell that trains."""
    for cell in page.cells():
        page.run(cell)
    *_, training, last = page.cells()
    page.wait_for_text(last, ".jp-OutputArea-executeResult", "]")
    accuracies = ast.literal_eval(text(last, ".jp-OutputArea-executeResult .jp-OutputArea-output"))
    assert accuracies[0] == accuracies[1] > 0.9
    return training


def text(cell: WebElement, selector: str) -> str:
    """Return the words of all these parts of a cell."""
    return " ".join(found.text for found in cell.find_elements(By.CSS_SELECTOR, selector))


@contextmanager
def browser(folder: Path, *, patience: float = PATIENCE) -> Iterator[Page]:
    """Give a headless browser. It takes any certificate, as people do who have compared its fingerprint."""
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    options.accept_insecure_certs = True
    for argument in [*CHROMIUM.split(), f"--user-data-dir={folder}"]:
        options.add_argument(argument)
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        driver.set_page_load_timeout(patience)
        yield Page(driver, patience)
    except BaseException:
        LOGS.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(LOGS / "page.png"))
        print(f"the page as it was is in {LOGS}")
        raise
    finally:
        driver.quit()
