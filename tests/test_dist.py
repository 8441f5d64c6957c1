"""What would be released: wheel and sdist hold what they should, and the wheel works where there is no clone."""

import os
import re
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import fenchel

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fenchel"
NAME = f"fenchel-{fenchel.__version__}"

TEXT = "The quick brown fox jumps over the lazy dog.\nAttention computes a weighted mean.\n"


def build(folder: Path, out: Path, *targets: str) -> None:
    chosen = [part for target in targets for part in ("-t", target)]
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out), *chosen],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out, "sdist", "wheel")
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # Python before 3.11.4 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)  # noqa: S202 -- what was just built
    return folder / NAME


def files_of_the_package() -> set[str]:
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {f"{NAME}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    assert names == files_of_the_package() | about | {f"{NAME}.dist-info/licenses/LICENSE"}
    assert "fenchel/py.typed" in names


def test_the_sdist_holds_what_is_kept_in_version_control(unpacked: Path):
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if kept.returncode != 0:
        pytest.skip("not in a clone: nothing says what is kept")
    names = {name for name in kept.stdout.split("\0") if name and (ROOT / name).is_file()}
    held = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert names - held == set()
    assert {name for name in held - names if Path(name).parts[0] not in {"src", "tests"}} <= {"PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(unpacked: Path, wheel: Path, tmp_path: Path):
    build(unpacked, tmp_path, "wheel")
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_audits_the_demo_where_there_is_no_clone(wheel: Path, tmp_path: Path):
    environment, here = tmp_path / "environment", tmp_path / "here"
    here.mkdir()
    (here / "text.txt").write_text(TEXT)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FENCHEL", "COV"))
    } | {"HF_HUB_OFFLINE": "1"}

    def asked(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=here, env=outside, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # Everything else comes from the environment that runs this; of the clone, which is only linked there, nothing does.
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    install = "install --no-deps --no-index --quiet --no-compile"
    asked(sys.executable, "-m", "pip", "--python", python, *install.split(), wheel)
    where = "from importlib import metadata, util; print(metadata.version('fenchel'), util.find_spec('fenchel').origin)"
    assert asked(python, "-c", where).split() == [
        fenchel.__version__,
        f"{packages / 'fenchel' / '__init__.py'}",
    ]
    audit = "audit demo --text text.txt --out out --baseline none --layers 1"
    assert "Report: out/report.html" in asked(environment / "bin" / "fenchel", *audit.split())
    assert {"heads.json", "heads.parquet", "report.html"} <= {path.name for path in (here / "out").iterdir()}


def test_the_citation_is_that_of_the_readme_and_says_nothing_that_is_said_elsewhere():
    """As the Citation File Format 1.2.0 wants it."""
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()
    (paper,) = citation["references"]
    cited = re.search(r"\[\*(Deciphering.*?)\*\]\((.*?)\)", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert cited is not None
    assert cited.groups() == (paper["title"], paper["url"])
