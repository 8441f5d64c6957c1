"""Pictures of a page, each of which a click opens as large as it is."""

from __future__ import annotations

import re

__all__ = ["with_links_to_pictures"]

# A link as it is, or a picture outside of one.
_LINK_OR_PICTURE = re.compile(r'<a\b[^>]*>.*?</a>|<img\b[^>]*\bsrc="([^":]+)"[^>]*>', flags=re.DOTALL)


def with_links_to_pictures(page: str) -> str:
    """A page's HTML in which every picture that is a file, and in no link, is a link to itself.

    Args:
        page: HTML.

    Example:
        >>> with_links_to_pictures('<img alt="one" src="images/one.png">')
        '<a class="picture" href="images/one.png" title="Open the picture"><img alt="one" src="images/one.png"></a>'
        >>> with_links_to_pictures('<a href="there.html"><img src="one.png"></a>')
        '<a href="there.html"><img src="one.png"></a>'
    """
    return _LINK_OR_PICTURE.sub(
        lambda found: (
            f'<a class="picture" href="{found[1]}" title="Open the picture">{found[0]}</a>'
            if found[1]
            else found[0]
        ),
        page,
    )
