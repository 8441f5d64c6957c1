"""What docs/ot-vit.md shows is what was recorded, what is run, and what the paper prints."""

from __future__ import annotations

import re

import pytest

from fenchel.errors import InputError
from fenchel.experiments import ARMS, BUDGETS, ExperimentReport
from fenchel.experiments.page import fill_page, filled
from fenchel.experiments.paper import reported
from fenchel.experiments.table import markdown_table
from fenchel.train import TrainOptions
from tests.experiments.test_report import OT, VIT, report
from tests.pages import ROOT, page, run_blocks

PAGE = "docs/ot-vit.md"
RECORDED = sorted(path.stem for path in (ROOT / "docs" / "results").glob("ot-vit*.json"))


def rows(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose first heading begins so."""
    table = text[text.index(f"| {first}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [table[0], *table[2:]]]


def test_blocks_run(capsys):
    run_blocks(PAGE)
    assert ARMS["ot-vit"].reading in capsys.readouterr().out


def test_the_page_holds_what_was_recorded():
    text = page(PAGE)
    for name in RECORDED:
        recorded = ExperimentReport.load(ROOT / "docs" / "results" / f"{name}.json")
        assert f"<!-- results: {name} -->" in text
        assert filled(text, {name: recorded}) == text
        assert (ROOT / "docs" / "images" / f"{name}.png").exists()
    unfilled = [name for name in re.findall("<!-- results: (.*) -->", text) if name not in RECORDED]
    assert text.count("\nNot run yet:") == len(unfilled)


def test_a_page_with_other_numbers_would_be_noticed():
    text = "<!-- results: x -->\n<!-- end of results -->\n"
    ours, theirs = filled(text, {"x": report()}), filled(text, {"x": report({"vit": VIT, "ot-vit": VIT})})
    assert ours != theirs
    assert filled(ours, {"x": report()}) == ours
    assert filled(ours, {"x": report({"vit": VIT, "ot-vit": VIT})}) == theirs


def test_the_papers_tables():
    (head, *lines) = rows(page(PAGE), "Test accuracy, learning rate 3e-4")
    names = {"Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    cells = [
        (names[data], 3e-4, line[0], cell)
        for line in lines
        for data, cell in zip(head[1:], line[1:], strict=True)
    ]
    (head, *lines) = rows(page(PAGE), "Test accuracy on CIFAR-100")
    cells += [
        ("cifar100", float(rate), line[0], cell)
        for line in lines
        for rate, cell in zip(head[1:], line[1:], strict=True)
    ]
    assert len(cells) == 12
    for data, rate, arm, cell in cells:
        found = reported(data, rate, arm.lower())
        assert found is not None
        assert cell == f"{found.accuracy:.3f} ± {found.half_width:.2f}"


def test_the_arms_and_the_budgets():
    text = page(PAGE)
    assert [line[0] for line in rows(text, "Arm | Last layer")[1:]] == [
        f"`{arm.name}` {arm.label}" for arm in ARMS.values()
    ]
    for line, budget in zip(rows(text, "Budget |")[1:], BUDGETS.values(), strict=True):
        numbers = ["all" if n is None else f"{n:,}" for n in budget.options.values()]
        assert line[:4] == [f"`{budget.name}`", *numbers]
    for budget in BUDGETS.values():
        wanted, epochs = budget.options["train_images"], budget.options["epochs"]
        images = "all images" if wanted is None else f"{wanted:,} images"
        assert re.search(rf"`{budget.name}` \({images}, {epochs} epochs", page("docs/command-line.md"))


def test_each_arm_is_what_the_page_says_that_fenchel_train_takes():
    lines = rows(page(PAGE), "Arm | `fenchel train`")[1:]
    assert [line[0] for line in lines] == [f"`{name}`" for name in ARMS]
    for (_, written), arm in zip(lines, ARMS.values(), strict=True):
        words = written.strip("`").split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        options = TrainOptions(
            data="any", model=given["--model"], extra_preference=given.get("--extra-preference")
        ).resolved()
        assert {"model": options.model, "extra_preference": options.extra_preference} == arm.options


def test_a_page_is_filled(tmp_path):
    target = tmp_path / "page.md"
    target.write_text(
        "# A\n<!-- results: one -->\nold\n<!-- end of results -->\n"
        "B\n<!-- results: two -->\nkept\n<!-- end of results -->\n"
    )
    (tmp_path / "one.json").write_bytes(saved(tmp_path / "experiment"))
    assert fill_page(target, tmp_path, tmp_path) == ("one",)
    text = target.read_text()
    assert markdown_table(report({"vit": VIT, "ot-vit": OT}).results) in text
    assert "old" not in text
    assert "\nkept\n" in text
    assert text.startswith("# A\n")
    assert "(images/one.png)" in text
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    fill_page(target, tmp_path, tmp_path)
    assert target.read_text() == text


def saved(folder) -> bytes:
    folder.mkdir()
    report({"vit": VIT, "ot-vit": OT}).save(folder)
    return (folder / "results.json").read_bytes()


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(InputError, match=r"page.md marks no place for results"):
        fill_page(tmp_path / "page.md", tmp_path, tmp_path)
