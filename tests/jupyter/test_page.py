"""``%%ronde`` as people see it: a notebook in a real JupyterLab, run through the page in headless Chromium."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import Lab, running_lab
from page import Page, browser, run_example, text
from selenium.webdriver.common.by import By

REPOSITORY = Path(__file__).resolve().parents[2]
# docs/pictures/notebook.png is this one.
PICTURE = REPOSITORY / "target" / "test-logs" / "notebook.png"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(REPOSITORY / "examples" / "ronde.ipynb", folder)
    with running_lab(folder) as running:
        yield running


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as opened:
        yield opened


def test_the_server_wants_its_token(lab: Lab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{lab.address}/api/contents", timeout=60)
    with urllib.request.urlopen(f"{lab.address}/api/contents?token={lab.token}", timeout=60) as answer:
        assert b"ronde.ipynb" in answer.read()


def test_the_example_trains_on_two_ranks_through_the_page(lab: Lab, page: Page) -> None:
    page.open(lab.address, lab.token, "ronde.ipynb")
    training = run_example(page)

    page.wait_for_text(training, ".ronde-head", "✓ done · 2 ranks on 1 host")
    first, second = training.find_elements(By.CSS_SELECTOR, "details.ronde-rank")
    assert [bool(rank.get_attribute("open")) for rank in (first, second)] == [True, False]
    assert "epoch 20" in text(first, "pre")
    assert "rank 1 on localhost · epoch 20" in second.find_element(By.CSS_SELECTOR, "summary").text
    second.find_element(By.CSS_SELECTOR, "summary").click()
    page.wait_for_text(second, "pre", "epoch  4 ")
    second.find_element(By.CSS_SELECTOR, "summary").click()
    page.take_picture(training, PICTURE)


SPEAKS_UNTIL_STOPPED = """\
%%ronde -np 2
import itertools, time
for number in itertools.count():
    print("line", number)
    time.sleep(0.05)  # sleep: people can read along"""


def test_what_people_open_stays_open_while_ranks_speak_and_the_stop_button_ends_them(lab: Lab, page: Page) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in ("%load_ext ronde", SPEAKS_UNTIL_STOPPED)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}},
    )
    nbformat.write(notebook, lab.folder / "speaks.ipynb")
    page.open(lab.address, lab.token, "speaks.ipynb")
    load, speaks = page.cells()
    page.run(load)
    page.run(speaks)
    page.wait_for_text(speaks, "details.ronde-rank summary", "line")
    assert page.script("return arguments[0].querySelector('.ronde-head progress') !== null", speaks)

    # Parts are drawn anew with each line, so that they must be looked for each time.
    state = "[...arguments[0].querySelectorAll('details.ronde-rank')].map(it => it.open)"
    for rank in (0, 1):
        page.script(f"arguments[0].querySelectorAll('details.ronde-rank summary')[{rank}].click()", speaks)
    page.wait_for(f"const [first, second] = {state}; return !first && second", speaks)
    number = "Number(arguments[0].querySelectorAll('summary')[1].innerText.match(/line (\\d+)/)[1])"
    before = page.script(f"return {number}", speaks)
    page.wait_for(f"return {number} > {before + 20}", speaks)
    assert page.script(f"return {state}", speaks) == [False, True]

    page.driver.find_element(By.CSS_SELECTOR, "[data-command='notebook:interrupt-kernel']").click()
    page.wait_for_text(speaks, ".ronde-head", "■ interrupted · 2 ranks on 1 host")
    page.wait_for_text(speaks, ".jp-OutputArea", "KeyboardInterrupt: the job was ended, and nothing of it is left")
    assert page.script(f"return {state}", speaks) == [False, True]
