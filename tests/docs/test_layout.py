"""Each page of the site fits a desktop and a telephone, in a real browser: `make test-docs`."""

from __future__ import annotations

import functools
import html
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.watch.test_overview_page import BROWSER, browse
from tests.docs.pages import PAGES

LOOK = Path(__file__).with_name("layout.html")
VIRTUAL_MS = 600_000
"""How long the browser's own clock may run; it stands still while pages load, and jumps while nothing happens."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder, so that a page may look into frames with others; yield its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.docs
@pytest.mark.skipif(not BROWSER.exists(), reason="no browser is here: `make test-web` brings one")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_covered_or_wider_than_its_column(site: Path, tmp_path: Path, width: int) -> None:
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html")
    look = LOOK.read_text().replace("[/*pages*/]", json.dumps(pages)).replace("/*width*/0", str(width))
    (site / LOOK.name).write_text(look)
    try:
        with served(site) as url:
            shown = browse(f"{url}/{LOOK.name}?", tmp_path, "--dump-dom", f"--virtual-time-budget={VIRTUAL_MS}")
    finally:
        (site / LOOK.name).unlink()
    found: list[dict[str, Any]] = json.loads(html.unescape(re.findall(r'<pre id="found">(.*?)</pre>', shown, re.S)[0]))
    assert sorted(each["page"] for each in found) == pages
    assert len(pages) >= len(PAGES)
    assert sum(each["blocks"] for each in found) > 50
    assert [each["page"] for each in found if each["blocks"] != each["buttons"]] == []
    assert [fault for each in found for fault in each["found"]] == []
