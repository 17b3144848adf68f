"""Each page has its place in the site, and the site is whole: `make test-docs`, which brings mkdocs."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts import docs_site
from tests.docs.pages import PAGES
from tests.house import REPOSITORY
from tests.house.test_dependencies import PROJECT

NAV = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


def test_the_navigation_names_every_page_once() -> None:
    """A page that is not there is found by nobody; mkdocs says the same when it builds."""
    paths = re.findall(r": (\S+\.md)(?: #.*)?$", NAV, re.MULTILINE)
    nav = docs_site.with_decisions([{path: path} for path in paths])
    named = [docs_site.page_of(path) for _, _, path in docs_site.nav_pages(nav)]
    assert sorted(named) == sorted(str(page.relative_to(REPOSITORY)) for page in PAGES)


def test_the_list_for_programs_names_every_page() -> None:
    nav = [{"Home": "README.md"}, {"Run it": [{"Limits": "limits.md"}]}]
    text = docs_site.llms_text(nav, "what it is")
    assert text.startswith("# mmcached\n\n> what it is\n\n## mmcached\n\n- [Home](README.md): A host-wide cache")
    assert "\n## Run it\n\n- [Limits](limits.md): " in text


class Links(html.parser.HTMLParser):
    """What a page of the site refers to, and the names in it that can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name in ("id", "name") and value:
                self.names.add(value)


@pytest.mark.docs
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {file: Links(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}
    assert len(pages) >= len(PAGES)
    lost = []
    for file, links in pages.items():
        for target in links.targets:
            where = urlsplit(target)
            if where.scheme:
                continue  # another site; that nothing is fetched from one is tested below
            found = (file.parent / unquote(where.path)).resolve() if where.path else file
            names = pages[found].names if found in pages else {where.fragment}
            if not found.exists() or (where.fragment and unquote(where.fragment) not in names):
                lost.append((file.name, target))
    assert lost == []


@pytest.mark.docs
def test_nothing_in_it_comes_from_elsewhere_or_tells_of_this_machine(site: Path) -> None:
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert str(REPOSITORY) not in text
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?:', text), file.name


@pytest.mark.docs
def test_the_calls_of_a_client_are_explained(site: Path) -> None:
    names = Links((site / "api.html").read_text()).names
    for name in ("client.Client", "client.AsyncClient", "client.calls.Calls.get_or_compute", "client.Hit.token"):
        assert f"mmcached.{name}" in names


@pytest.mark.docs
def test_signatures_are_those_that_a_caller_sees(site: Path) -> None:
    """Not those of the verbs that a client drives, with names of constants."""
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    assert "-&gt; Generation" in text
    assert "run_dir: str | PathLike[str] | None = None, *, timeout_s: float = 60.0" in " ".join(text.split())
    assert [word for word in ("Verb[", "Call[", "PieceStream", "DEFAULT_LIBRARY", "ANY_CLIENT") if word in text] == []


@pytest.mark.docs
def test_each_page_links_to_the_repository_and_asks_it_for_nothing(site: Path) -> None:
    repository = PROJECT["urls"]["Repository"]
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert f'href="{repository}" title=' in text
        assert 'data-md-component="source"' not in text, "its script asks for the repository's stars"


@pytest.mark.docs
def test_programs_find_every_page_as_text(site: Path) -> None:
    pages = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", (site / "llms.txt").read_text(), re.MULTILINE)
    assert len(pages) == len(PAGES)
    assert [page for page in pages if not (site / page).exists()] == []
