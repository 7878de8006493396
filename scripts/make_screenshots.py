"""Makes the screenshots of the dashboard in docs/assets anew: a run, `rollway dashboard`, and a headless browser.

`python scripts/make_screenshots.py [--seconds 40]` needs Debian's chromium: scripts/install_chromium.sh installs it.
One worker is stopped for the last quarter of the time, so that there is something to see.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"


def start(environment: dict[str, str], *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def shoot(browser: Browser, url: str, name: str, width: int, height: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url)
    if "/segment/" in url:
        page.locator(".participants").wait_for()
    else:
        page.locator(".card canvas").first.wait_for()
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")
    path = ASSETS / f"{name}.png"
    page.screenshot(path=path, animations="disabled")
    print(f"docs/assets/{path.name}: {path.stat().st_size / 1000:.0f} KB")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="how long the run is watched before")
    seconds = parser.parse_args().seconds
    ASSETS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screenshots-", dir="/dev/shm") as directory:
        environment = {**os.environ, "ROLLWAY_SHM_DIR": directory, "PYTHONPATH": str(ROOT / "python")}
        run = start(environment, ROOT / "scripts/sample_run.py")
        worker = json.loads(run.stdout.readline())[0]
        dashboard = start(environment, "-m", "rollway.cli", "dashboard", "--port", 0, "--interval", 0.5)
        url = dashboard.stdout.readline().split()[-1]
        try:
            time.sleep(seconds * 3 / 4)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(seconds / 4)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                shoot(browser, url, "dashboard_overview", 1100, 420, "light")
                shoot(browser, f"{url}segment/rollouts", "dashboard_segment", 1100, 960, "light")
                shoot(browser, f"{url}segment/trajectories", "dashboard_phone", 390, 844, "dark")
                browser.close()
        finally:
            dashboard.send_signal(signal.SIGINT)
            dashboard.communicate()
            run.communicate("")


if __name__ == "__main__":
    main()
