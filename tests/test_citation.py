"""CITATION.cff: what tools that cite software read, in the form that they read."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

# Of the Citation File Format 1.2.0: what has to be there, and what may be, as far as this file may want it.
NEEDED = {"cff-version", "message", "title", "authors"}
ALLOWED = NEEDED | {
    *(
        "abstract",
        "commit",
        "contact",
        "date-released",
        "doi",
        "identifiers",
        "keywords",
        "license",
        "references",
    ),
    *("repository-code", "type", "url", "version"),
}
NEEDED_OF_A_REFERENCE = {"type", "title", "authors"}


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_it_has_what_the_format_wants(citation):
    assert citation["cff-version"] == "1.2.0"
    assert set(citation) >= NEEDED
    assert set(citation) <= ALLOWED
    assert citation["type"] == "software"
    assert citation["title"].startswith("fenchel")
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_it_says_nothing_that_is_said_elsewhere(citation):
    # The version has one place, and the licence is the project's.
    assert "version" not in citation
    assert citation["license"] == "Apache-2.0"
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()


def test_it_cites_the_paper_that_the_readme_cites(citation):
    (paper,) = citation["references"]
    assert set(paper) >= NEEDED_OF_A_REFERENCE
    assert paper["url"] == "https://openreview.net/forum?id=lHnbmXtJXf"
    title, link = re.findall(r"\[\*(Deciphering.*?)\*\]\((.*?)\)", README, flags=re.DOTALL)[0]
    assert (paper["title"], paper["url"]) == (title, link)
    assert paper["year"] == 2024
