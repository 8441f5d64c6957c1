"""What a page of the site links to, what it loads, and which places it has."""

from html.parser import HTMLParser
from pathlib import Path

__all__ = ["HtmlPage"]

_LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "link": "href",
    "source": "src",
    "video": "src",
    "object": "data",
}
# A link element that says something and has nothing loaded.
_SAID = {"canonical", "prev", "next", "alternate"}


class HtmlPage(HTMLParser):
    """One page.

    Attributes:
        links: What its anchors lead to.
        loaded: What a browser loads by itself: scripts, styles, fonts, images, frames.
        places: Ids and names.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.places |= {value for key in ("id", "name") if (value := said.get(key))}
        if tag == "a" and (target := said.get("href")) is not None:
            self.links.append(target)
        kept = tag == "link" and said.get("rel") in _SAID
        if tag in _LOADED and not kept and (source := said.get(_LOADED[tag])):
            self.loaded.append(source)
