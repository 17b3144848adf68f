"""Makes of the repository's pages a site: the hook of `mkdocs.yml`.

Pages link to files beside docs/, and are read in a checkout as well. So what a page links to comes into the site where
it lies in the repository, docs/ being its root, and links are said anew. `llms.txt` lists all pages for programs that
read text, and each page lies beside its HTML as it is. The index of decisions says which records there are.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
SOURCE = re.compile(r'(?<=src=")[^":]+|(?<=srcset=")[^":]+')
DECISIONS = "decisions/README.md"
RECORD = re.compile(r"^## (.+)$|^\* \[(.+)\]\((\d+-[\w-]+\.md)\)$", re.MULTILINE)
FENCE = re.compile(r"^```(\w+) [\w -]+$", re.MULTILINE)


def site_path(repository_path: str) -> str:
    """Return where a file of the repository lies in the site.

    >>> site_path("docs/hosts/vllm.md"), site_path("SECURITY.md")
    ('hosts/vllm.md', 'SECURITY.md')
    """
    return repository_path.removeprefix("docs/")


def linked(page: str, text: str) -> Iterator[str]:
    """Yield the files that a page links to; all are paths in the repository."""
    for target, _ in LINK.findall(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def for_site(page: str, text: str) -> str:
    """Return a page's text with links that hold in the site, and languages of code without what tests read there.

    >>> for_site("docs/hosts/vllm.md", "[who](../../SECURITY.md#trust)")
    '[who](../SECURITY.md#trust)'
    >>> for_site("README.md", '<img src="docs/pictures/bars.svg">')
    '<img src="pictures/bars.svg">'
    """

    def moved(target: str) -> str:
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        return posixpath.relpath(site_path(in_repository), posixpath.dirname(site_path(page)))

    text = LINK.sub(lambda found: f"]({moved(found[1])}{found[2] or ''})", text)
    return FENCE.sub(r"```\1", SOURCE.sub(lambda found: moved(found[0]), text))


def page_of(in_site: str) -> str:
    """Return where a page of the site lies in the repository."""
    return f"docs/{in_site}" if (REPOSITORY / "docs" / in_site).exists() else in_site


def decision_nav(index: str) -> list[Any]:
    r"""Return what the navigation has of the decisions: their index, and the records of each area.

    >>> decision_nav("# Decisions\n\n## Client\n\n* [It is small](002-small.md)\n")
    [{'Index': 'decisions/README.md'}, {'Client': [{'002 It is small': 'decisions/002-small.md'}]}]
    """
    nav: list[Any] = [{"Index": DECISIONS}]
    records: list[Any] = []
    for area, title, path in RECORD.findall(index):
        if area:
            records = []
            nav.append({area: records})
        else:
            records.append({f"{path[:3]} {title}": f"decisions/{path}"})
    return nav


def with_decisions(nav: list[Any]) -> list[Any]:
    """Return a navigation with the records of decisions where it names their index."""
    records = decision_nav((REPOSITORY / page_of(DECISIONS)).read_text())
    return [
        {title: records if inside == DECISIONS else inside for title, inside in dict(entry).items()} for entry in nav
    ]


def nav_pages(nav: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield section, title and path of each page of the navigation; pages of no section have "mmcached"."""
    for entry in nav:
        ((title, inside),) = dict(entry).items()
        if isinstance(inside, str):
            yield "mmcached", title, inside
        else:
            for _, name, path in nav_pages(inside):
                yield title, name, path


def first_sentence(text: str) -> str:
    r"""Return the first sentence below the title, without markup.

    >>> first_sentence("# Limits\n\n**What** a [peer](x.md) may ask. And more.")
    'What a peer may ask.'
    """
    paragraphs = re.split(r"\n\s*\n", text)
    plain = next((part for part in paragraphs if not part.startswith(("#", "|", "```", ":::", "<", "- "))), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split())).replace("**", "")
    return re.split(r"(?<=\.) ", plain)[0]


def llms_text(nav: list[Any], summary: str) -> str:
    """Return the list of all pages: title, place, and first sentence, by section."""
    lines, last = ["# mmcached", "", f"> {summary}"], ""
    for section, title, path in nav_pages(nav):
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        text = (REPOSITORY / page_of(path)).read_text()
        lines.append(f"- [{title}]({path}): {first_sentence(text)}")
    return "\n".join(lines) + "\n"


# ---- what mkdocs calls


def on_config(config: Any, **options: Any) -> Any:
    """Link to the repository that the package's metadata names, and name each decision in the navigation."""
    config.nav = with_decisions(config.nav)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    config.repo_url, config.repo_name = project["urls"]["Repository"], "Source code"
    return config


def on_files(files: Any, config: Any, **options: Any) -> Any:
    """Add the pages beside docs/ that the navigation names, and every file that a page links to."""
    from mkdocs.structure.files import File

    pages = [page_of(path) for _, _, path in nav_pages(config.nav)]
    wanted = {target for page in pages for target in linked(page, (REPOSITORY / page).read_text())} | set(pages)
    for path in sorted(wanted):
        if not path.startswith("docs/") and (REPOSITORY / path).is_file():
            files.append(File.generated(config, site_path(path), abs_src_path=str(REPOSITORY / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **options: Any) -> str:
    """Say a page's links as they are in the site."""
    return for_site(page_of(page.file.src_uri), markdown)


def on_post_build(config: Any, **options: Any) -> None:
    """Write `llms.txt`, and the pages as text."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(llms_text(config.nav, config.site_description))
    for _, _, path in nav_pages(config.nav):
        source = page_of(path)
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(for_site(source, (REPOSITORY / source).read_text()))
