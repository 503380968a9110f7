"""report.html in a real browser: it renders in both colour schemes, fetches nothing and has no console message."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from rose_jax import report
from rose_jax.report import style

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=900,2000",
    "--enable-logging=stderr",
]

HOSTILE = "<script>document.title='taken'</script><img src=http://example.com/x onerror=document.title='taken'>"


def browse(page, tmp_path, *flags):
    """What the browser printed: the page's DOM or nothing, and its log."""
    profile = tmp_path / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(("theme", "setting"), [("light", "1"), ("dark", "0")])
def test_it_renders_and_fetches_nothing(make_run, tmp_path, theme, setting):
    page = report.write(make_run(methods=(HOSTILE, "rose"), tasks=2, label="thin")).html
    shot, netlog = tmp_path / "shot.png", tmp_path / "net.json"
    _, log = browse(
        page,
        tmp_path,
        f"--screenshot={shot}",
        f"--log-net-log={netlog}",
        f"--blink-settings=preferredColorScheme={setting}",
    )
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    background = np.round(255 * np.array(to_rgb(style.theme(theme)["figure.facecolor"])))
    rose = np.round(255 * np.array(to_rgb(style.look("rose").color)))
    assert np.mean(np.all(pixels == background, axis=2)) > 0.5
    assert np.sum(np.abs(pixels - rose).max(axis=2) < 8) > 500  # the curve is there, and in its colour
    assert "CONSOLE" not in log
    assert "example.com" not in netlog.read_text(errors="replace")


def test_on_a_phone_nothing_runs_over_the_edge(make_run, tmp_path):
    page = report.write(make_run(methods=("base", "projector", "gd", "rose", "lwf+rose_whitened"), tasks=10)).html
    (inner, scrolled), _ = measured(page, tmp_path, 390)
    assert inner <= 500, "chromium may not go below"
    assert scrolled <= inner


def test_on_a_screen_no_column_is_clipped(make_run, tmp_path, no_drawing):
    """Of two runs whose configs differ in long values, all tables unfolded."""
    methods = ("base", "projector", "gd", "rose", "lwf+rose_whitened", "gd_queue", "fetril_fc")
    runs = [make_run("a", tasks=20, methods=methods), make_run("b", tasks=10, methods=methods)]
    (runs[0] / "config.json").write_text(json.dumps({"note": "changed: " + "data.name, train.first.epochs, " * 9}))
    page = report.write_several(runs, tmp_path / "out").html
    page.write_text(page.read_text().replace("<details>", "<details open>"))
    (inner, scrolled), clipped = measured(page, tmp_path, 1280)
    assert (inner, scrolled) == (1280, 1280)
    assert clipped == 0


def measured(page, tmp_path, width):
    """(the window's width, the page's), and how many tables are wider than their place."""
    told = """<script>document.title = [innerWidth, document.documentElement.scrollWidth,
        [...document.querySelectorAll(".scroll")].filter(x => x.scrollWidth > x.clientWidth).length].join(" ")</script>"""
    text = re.sub(r"<meta http-equiv=.Content-Security-Policy.*?>", "", page.read_text())  # which forbids scripts
    page.write_text(text.replace("</body>", told + "</body>"))
    dom, _ = browse(page, tmp_path, f"--window-size={width},800", "--dump-dom")
    inner, scrolled, clipped = map(int, re.search(r"<title>(\d+) (\d+) (\d+)</title>", dom).groups())
    return (inner, scrolled), clipped


def test_a_hostile_name_runs_nothing(make_run, tmp_path, no_drawing):
    page = report.write(make_run(methods=(HOSTILE, "rose"))).html
    dom, log = browse(page, tmp_path, "--dump-dom")
    assert re.search(r"<title>(.*?)</title>", dom).group(1) == "rose_jax: CIFAR-100 cold 3"
    assert dom.count("<img") == 8
    assert "CONSOLE" not in log
