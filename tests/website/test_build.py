"""Where the site cannot be written, one line says so and what is there stays."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="the site needs pip install 'fenchel[docs]'")

from fenchel.errors import InputError, OutputError
from tests.pages import ROOT
from website.build import NEEDED_BYTES, build_site


def former_site(folder: Path) -> Path:
    out = folder / "site"
    (out / "search").mkdir(parents=True)
    (out / "search" / "search_index.json").write_text("{}")
    return out


def raising(error: OSError) -> Any:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    return fail


def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = former_site(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9 << 30, 9 << 30, 3 << 20)
    )
    with pytest.raises(
        OutputError, match=r"no space for the site: .* has 3 MB free and 100 MB are needed\. Free"
    ):
        build_site(ROOT, out)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert NEEDED_BYTES == 100 << 20


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full. Free some space, or give another"),
        (errno.EROFS, "Give another folder"),
    ],
)
def test_no_space_while_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    out = former_site(tmp_path)
    monkeypatch.setattr("mkdocs.commands.build.build", raising(OSError(number, "said by the system")))
    with pytest.raises(OutputError, match=words) as raised:
        build_site(ROOT, out)
    assert str(out) in str(raised.value)
    assert (out / "search" / "search_index.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="has other things in it than a site, which would be lost"):
        build_site(ROOT, tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_a_file_where_the_folder_of_the_site_is_to_lie(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write the site to .*file/site"):
        build_site(ROOT, tmp_path / "file" / "site")


def test_a_link_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](there.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: mine\n")
    with pytest.raises(InputError, match=r"the site was not built: .*'there\.md'"):
        build_site(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()
