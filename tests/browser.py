"""A headless Chromium for tests: found or skipped with a reason, nothing of it is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

REQUIRE_BROWSER = "IMAGEBEAM_REQUIRE_BROWSER"


def _missing(reason: str) -> None:
    if os.environ.get(REQUIRE_BROWSER) == "1":
        pytest.fail(f"{REQUIRE_BROWSER}=1, but {reason}")
    pytest.skip(reason)


@contextlib.contextmanager
def chromium(*, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A WebDriver over an empty profile; its "performance" log has all network events.

    The window has exactly `width` x `height` CSS pixels; motion is reduced, so that nothing
    moves while a test looks.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver_path = shutil.which("chromedriver")
    if browser is None or driver_path is None:
        _missing("no Chromium here: apt-get install chromium chromium-driver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _missing("no selenium here: pip install selenium")
    with tempfile.TemporaryDirectory(prefix="imagebeam-browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(browser)
        for flag in (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(driver_path))
        try:
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
            )
            features = [
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.set_page_load_timeout(60)
            yield driver
        finally:
            driver.quit()
