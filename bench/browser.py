"""A headless browser, for pictures and for tests of pages."""

import shutil
import subprocess
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=30000")


def find_browser() -> str | None:
    """A Chromium on this machine, if there is one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def rendered(browser: str, page: Path) -> str:
    """The page's document after its scripts have run, in a browser without a network."""
    command = [browser, *HEADLESS, "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", page.resolve().as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
