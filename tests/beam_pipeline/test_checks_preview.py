"""imagebeam preview: what the page says, that nothing in it is markup, and a real browser on it."""

from __future__ import annotations

import io
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.checks.preview import contact_sheet, gather_preview
from beam_pipeline.checks.preview_charts import quantile_curve, stacked_bar
from beam_pipeline.cli import main
from beam_pipeline.options import InputLayout
from tests import conversions, fakes
from tests.browser import chromium

EVIL = '"><script>document.title="owned"</script><img src=x onerror=alert(1)>'.replace("/", "\\")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two splits, a class whose name is an attack, rejects, several sizes."""
    root = tmp_path_factory.mktemp("preview")
    files = {}
    for split, count in (("train", 8), ("test", 3)):
        for number, label in enumerate(("happy", "sad & blue", EVIL)):
            for i in range(count):
                size = {"height": 24 + 8 * i, "width": 30 + 4 * number + 3 * i}
                files[f"{split}/{label}/{i}{EVIL[:30]}.png"] = fakes.png(10 * number + i, **size)
    files["train/happy/<b>broken.jpg"] = fakes.jpeg(0)[:200]
    files["train/happy/text.jpg"] = b"<html>" + EVIL.encode()
    fakes.write_tree(root / "images", files)
    conversions.run(root / "images", root / "faces", max_reject_fraction=0.5, num_shards=2)
    return root / "faces"


@pytest.fixture(scope="module")
def page(dataset: pathlib.Path) -> pathlib.Path:
    assert main(["preview", str(dataset), "--per_class", "5"]) == 0
    return dataset / "preview.html"


def test_what_the_page_says(page: pathlib.Path) -> None:
    text = page.read_text()
    assert len(re.findall(r'<button type="button" class="shot"', text)) == 3 * (5 + 3)
    assert "35 inputs = 33 written + 2 rejected + 0 duplicates" in text
    assert "sad &amp; blue" in text
    assert text.count("<section ") == 6
    for reason in ("not_an_image", "&lt;b&gt;broken.jpg"):
        assert reason in text


def test_nothing_in_the_page_is_markup_or_fetched(page: pathlib.Path) -> None:
    text = page.read_text()
    assert "&lt;script&gt;document.title=" in text
    assert text.count("<script") == 1
    assert "<img src=x" not in text
    assert 'document.title="owned"' not in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_pictures_are_those_of_the_images(dataset: pathlib.Path) -> None:
    statistics = gather_preview(str(dataset), per_class=2, pixels=0, threads=1)
    assert {len(found) for found in statistics.pictures.values()} == {2}
    for (split, label), pictures in statistics.pictures.items():
        for picture in pictures:
            assert picture.key.startswith(f"{split}/{label}/")
            with Image.open(dataset.parent / "images" / picture.key) as original:
                assert (picture.width, picture.height) == original.size
                expected = np.asarray(original.convert("RGB"), int)
            with Image.open(io.BytesIO(picture.data)) as found:
                difference = np.abs(np.asarray(found.convert("RGB"), int) - expected)
            assert difference.mean() < 12


def test_choice_is_random_but_repeatable(dataset: pathlib.Path) -> None:
    def keys(seed: int) -> set[str]:
        statistics = gather_preview(str(dataset), per_class=3, pixels=0, seed=seed, threads=1)
        return {p.key for found in statistics.pictures.values() for p in found}

    assert keys(0) == keys(0)
    assert keys(0) != keys(1)


def test_contact_sheet(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sheet.png"
    assert main(["preview", str(dataset), "--png", str(path)]) == 0
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width > 1000
        assert len(image.getcolors(1 << 24) or ()) > 1000
    statistics = gather_preview(str(dataset), per_class=1, pixels=0, threads=1)
    sheet = contact_sheet(statistics)
    assert sheet.height > 6 * 112  # a row for each class and split


def test_foreign_files_and_usage(
    dataset: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = f"{dataset}/*.tfrecord-*"
    assert main(["preview", "--glob", pattern]) == 2
    assert "--output" in capsys.readouterr().err
    path = tmp_path / "page.html"
    assert main(["preview", "--glob", pattern, "--output", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["images"] == 33
    assert 'class="shot"' in path.read_text()
    assert main(["preview", str(dataset), "--per_class", "0"]) == 2


def test_no_labels_one_size_no_rejects(tmp_path: pathlib.Path) -> None:
    fakes.write_tree(tmp_path / "images", {f"{i}.jpg": fakes.jpeg(i) for i in range(3)})
    conversions.run(tmp_path / "images", tmp_path / "out", layout=InputLayout.FLAT)
    assert main(["preview", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "preview.html").read_text()
    assert "All images are 32 × 24 pixels" in text
    assert "No input was refused" in text
    assert 'id="classes"' not in text


def test_charts_bear_odd_values() -> None:
    assert "<rect" not in stacked_bar([0, 0], 0, "none")
    assert "&lt;" in stacked_bar([1], 1, "<")
    assert "nan" not in quantile_curve([5.0] * 21, "all the same")
    assert "nan" not in quantile_curve([0.0] * 21, "zero")


# ---------------------------------------------------------------- a real browser


def network_requests(driver: Any) -> list[str]:
    """URLs that were asked for, other than data and the page itself."""
    urls = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    return [url for url in urls if not url.startswith(("data:", "file:", "chrome"))]


def assert_clean(driver: Any) -> None:
    assert driver.get_log("browser") == []  # no script error, nothing refused by the policy
    assert network_requests(driver) == []


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_renders_and_fetches_nothing(page: pathlib.Path, dark: bool) -> None:
    with chromium(dark=dark) as driver:
        driver.get(page.as_uri())
        assert driver.title == "faces – preview"
        broken = driver.execute_script(
            "return [...document.images].filter((i) => i.src !== 'data:,' && "
            "!(i.complete && i.naturalWidth > 0)).length"
        )
        assert broken == 0
        colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        assert (red + green + blue < 150) is dark
        # Text stands out from its ground: WCAG's ratio for normal text is 4.5.
        assert contrast(driver, "main p, main td, .soft") >= 4.5
        for key in ("overview", "classes", "sizes", "images", "rejects", "conversion"):
            assert driver.find_element("id", key).is_displayed()
        assert_clean(driver)


CONTRAST = """
const light = (c) => {
  const [r, g, b] = c.map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3);
  }
  return [255, 255, 255];
};
return Math.min(...[...document.querySelectorAll(arguments[0])].map((e) => {
  const a = light(parse(getComputedStyle(e).color).slice(0, 3)), b = light(ground(e));
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}));
"""


def contrast(driver: Any, selector: str) -> float:
    """The smallest contrast ratio of text that matches `selector` with its background."""
    return float(driver.execute_script(CONTRAST, selector))


@pytest.mark.browser
def test_narrow_screen(page: pathlib.Path) -> None:
    with chromium(width=360, height=700) as driver:
        driver.get(page.as_uri())
        width = driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= 360  # the page itself never scrolls sideways
        shot = driver.find_elements("css selector", ".shot")[0]
        assert shot.size["width"] >= 44  # a finger's width
        shot.click()
        dialog = driver.find_element("css selector", "dialog")
        assert dialog.is_displayed()
        assert dialog.size["width"] <= 360
        assert_clean(driver)


@pytest.mark.browser
def test_keyboard_filter_and_theme(page: pathlib.Path) -> None:
    with chromium() as driver:
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        driver.get(page.as_uri())
        body = driver.switch_to.active_element
        body.send_keys(Keys.TAB)  # the first stop leads to the content
        assert driver.switch_to.active_element.text == "Skip to the content"

        def shown() -> list[Any]:
            return [s for s in driver.find_elements("css selector", ".shot") if s.is_displayed()]

        assert len(shown()) == 24
        # The radio buttons are one stop; arrow keys choose.
        radio = driver.find_element("css selector", "input[name=split][value='']")
        radio.send_keys(Keys.ARROW_RIGHT)
        assert len(shown()) == 15  # train
        select = driver.find_element("css selector", ".controls select")
        select.send_keys("happy")
        assert len(shown()) == 5
        assert driver.find_element("css selector", ".count").text == "5 shown"

        first = shown()[0]
        first.send_keys(Keys.ENTER)
        dialog = driver.find_element("css selector", "dialog")
        assert dialog.is_displayed()

        def key() -> str:
            return dialog.find_element("css selector", ".key").text

        keys = [key()]
        for _ in range(5):
            driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
            keys.append(key())
        assert len(set(keys)) == 5  # only what the filter shows
        assert keys[5] == keys[0]
        driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
        assert key() == keys[4]
        driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        assert not dialog.is_displayed()
        # The focus is back where the eye was.
        WebDriverWait(driver, 5).until(
            lambda d: d.switch_to.active_element.get_attribute("data-key") == keys[4]
        )

        theme = driver.find_element("css selector", ".theme")
        grounds = []
        for _ in range(3):
            theme.send_keys(Keys.ENTER)
            script = "return getComputedStyle(document.body).backgroundColor"
            grounds.append((theme.text, driver.execute_script(script)))
        assert [name for name, _ in grounds] == ["Theme: light", "Theme: dark", "Theme: auto"]
        assert grounds[0][1] == grounds[2][1] != grounds[1][1]
        assert_clean(driver)


@pytest.mark.browser
def test_names_stay_text(page: pathlib.Path) -> None:
    with chromium() as driver:
        driver.get(page.as_uri())
        headings = [h.text for h in driver.find_elements("css selector", ".class h3 bdi")]
        assert EVIL in headings
        assert driver.execute_script("return document.querySelectorAll('img[onerror]').length") == 0
        for shot in driver.find_elements("css selector", ".shot")[-8:]:
            driver.execute_script("arguments[0].click()", shot)
            label = driver.find_element("css selector", "dialog .label").text
            assert label == shot.get_attribute("data-label")
        assert driver.title == "faces – preview"
        assert_clean(driver)
