"""What `make docs` does besides mkdocs: links that leave docs/, no asset from the internet, no page that is too long.

A page links to `../examples/remote.py`, which works in a checkout. On the site the link goes to the file in the
repository. A file that does not exist keeps its link, so that the build reports it.
"""

import html
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError

REPOSITORY = "https://github.com/rollway/rollway"
LOG = logging.getLogger("mkdocs.hooks")  # a warning here ends the build
ROOT = Path(__file__).parents[2]
MOST_WORDS = 1500
LINK = re.compile(r"\]\((\.\./[^)#\s]+)")
ASSET_FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|link(?! rel=\"canonical\"))\b[^>]*\s(?:src|href)=\"?(?:https?:)?//[^\s\">]*"
)


def on_page_markdown(markdown, page, **_):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def to_the_repository(link):
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        if path.startswith("docs/") or not (ROOT / path).exists():
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{path}"

    return LINK.sub(to_the_repository, markdown)


def on_page_content(content, page, **_):
    text = html.unescape(re.sub(r"<[^>]+>", "", content))
    words = [word for word in text.split() if re.search(r"\w", word)]
    if len(words) > MOST_WORDS:
        LOG.warning(f"{page.file.src_uri} has {len(words)} words. Split it by topic: a page has at most {MOST_WORDS}.")
    return content


def on_post_page(output, page, **_):
    if found := ASSET_FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from the internet: {found[0]}")
    return output
