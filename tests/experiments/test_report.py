"""What is made of the runs: means and paired differences, the table, the sentences, the figure."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from fenchel.errors import InputError
from fenchel.experiments import ARMS, ExperimentReport
from fenchel.experiments.data import described
from fenchel.experiments.figure import STYLES, write_curves
from fenchel.experiments.finding import findings, signed
from fenchel.experiments.interval import mean_interval
from fenchel.experiments.record import RunRecord
from fenchel.experiments.report import REPORT_FORM
from fenchel.experiments.run import planned
from fenchel.experiments.table import markdown, markdown_table, terminal_table
from fenchel.storage import write_document
from fenchel.train.vision import ImageClassification
from tests.experiments.small_experiments import few_images

VIT, OT = (0.80, 0.82, 0.79), (0.83, 0.86, 0.81)


def record(
    arm: str, seed: int, accuracy: float, *, data: str = "fashion-mnist", rate: float = 3e-4
) -> RunRecord:
    return RunRecord(
        data=data,
        learning_rate=rate,
        arm=arm,
        seed=seed,
        headline=accuracy,
        parameters=3_200_000,
        seconds=12.34,
        per_second=345.67,
        machine={"device": "cpu", "processes": 1, "precision": "float32"},
        curves={
            "train_loss": (1.0, 0.5),
            "test_loss": (None, 0.6),
            "test_accuracy": (None, accuracy),
        },
    )


def report(
    arms: dict[str, tuple[float, ...]] | None = None, *, note: str = "", name: str = "table2", **given: Any
) -> ExperimentReport:
    arms = {"vit": VIT, "ot-vit": OT} if arms is None else arms
    plan = planned(name, **{"data": ["fashion-mnist"], "arms": list(arms) or None, **given})
    images = few_images(note=note, train=6000, test=2000)
    plan = replace(
        plan, descriptions=tuple(described(data, ImageClassification, images) for data in plan.data)
    )
    records = [
        record(arm, seed, accuracy) for arm, values in arms.items() for seed, accuracy in enumerate(values)
    ]
    return ExperimentReport(plan, tuple(records))


def test_differences_are_paired_by_seed():
    vit, ot = report().cells
    assert vit.headline == mean_interval(VIT)
    assert ot.headline == mean_interval(OT)
    assert vit.difference is None
    assert ot.difference is not None
    paired = mean_interval([b - a for a, b in zip(VIT, OT, strict=True)])
    assert (ot.difference.mean, ot.difference.half_width) == pytest.approx((paired.mean, paired.half_width))
    assert ot.difference.half_width is not None
    assert ot.headline is not None
    assert ot.headline.half_width is not None
    assert ot.difference.half_width < ot.headline.half_width


def test_only_seeds_of_both_arms_are_paired():
    _, ot = report({"vit": VIT[:1], "ot-vit": OT}).cells
    assert ot.difference == mean_interval([OT[0] - VIT[0]])
    assert ot.seeds == (0, 1, 2)
    missing, alone = report({"vit": (), "ot-vit": OT}).cells
    assert missing.headline is None
    assert alone.difference is None


def test_records_outside_the_plan_do_not_count():
    found = report()
    more = replace(found, records=(*found.records, record("vit", 3, 0.0), record("vit", 0, 0.0, rate=1e-3)))
    assert more.cells == found.cells


def test_the_papers_numbers_stand_beside():
    vit, ot = report().cells
    assert vit.paper is not None
    assert ot.paper is not None
    assert (vit.paper.accuracy, ot.paper.accuracy) == (0.928, 0.937)
    assert (vit.paper_difference, ot.paper_difference) == (None, 0.009)


def test_the_table():
    assert markdown_table(report().results).splitlines() == [
        "fashion-mnist, learning rate 0.0003:",
        "",
        "| Arm | Paper | Ours ± 95 % | Paper: minus ViT | Ours: minus ViT ± 95 % | Seeds |",
        "|---|---:|---:|---:|---:|---:|",
        "| ViT | 0.928 ± 0.01 | 0.8033 ± 0.0379 | – | – | 3 |",
        "| OT-ViT | 0.937 ± 0.01 | 0.8333 ± 0.0625 | +0.009 | +0.0300 ± 0.0248 | 3 |",
    ]


def test_the_table_says_what_is_missing():
    lines = markdown_table(report({"vit": VIT[:1], "ot-vit-alone": ()}).results).splitlines()
    assert lines[4].endswith("| 0.928 ± 0.01 | 0.8000 (one seed) | – | – | 1 of 3 |")
    assert lines[5].endswith("| OT-ViT, no extras | – | – | – | – | 0 of 3 |")


def test_two_seeds_are_marked_and_an_impossible_interval_is_not_printed():
    found = report({"vit": (0.80, 0.79), "ot-vit": (0.7, 0.8)}, seeds=2)
    vit, ot = markdown_table(found.results).splitlines()[4:]
    assert "| 0.7950 ± 0.0635 (2 seeds) | – | – | 2 |" in vit
    assert "| 0.7500 ± – (2 seeds) | +0.009 | −0.0450 ± 0.6988 (2 seeds) | 2 |" in ot
    assert "± – stands where the interval would leave what an accuracy can be" in said(found)
    (sentence,) = found.findings
    assert "over 2 seeds (an interval of two is wide): zero is within" in sentence
    three = report()
    assert "± –" not in said(three)
    assert "seeds)" not in markdown_table(three.results)


def test_names_do_not_break_the_table():
    table = markdown_table(report(data=["hf:a|b", "c"]).results)
    assert table.startswith("| Data | Learning rate | Arm |")
    assert "| hf:a\\|b |" in table
    assert table.splitlines()[2].replace("\\|", "").count("|") == 9


def test_the_page_holds_the_table_the_findings_and_the_caveats():
    found = report()
    page = markdown(found.results)
    assert page.startswith("# Table 2: test accuracy by data set, budget smoke\n")
    assert markdown_table(found.results) in page
    for sentence in (*found.findings, *found.caveats):
        assert f"* {sentence}\n" in page
    assert "* OT-ViT: optimal-transport attention; the other image's templates have no preference" in page


@pytest.mark.parametrize(
    ("ot", "said"),
    [
        (OT, "OT-ViT minus ViT is +0.0300 [+0.0052, +0.0548] over 3 seeds: OT-ViT gains."),
        ((0.70, 0.71, 0.69), "over 3 seeds: OT-ViT loses."),
        ((0.81, 0.81, 0.80), "zero is within the interval: no difference is shown."),
        ((0.9,), "is +0.1000 with one seed, which has no interval and shows nothing."),
    ],
)
def test_a_difference_is_called_one_only_where_the_interval_leaves_zero_out(ot, said):
    (sentence,) = report({"vit": VIT, "ot-vit": ot}).findings
    assert sentence.startswith("fashion-mnist, learning rate 0.0003: OT-ViT minus ViT is ")
    assert sentence.endswith(said)


def test_nothing_is_found_without_the_baseline():
    assert findings(report({"ot-vit": OT}).cells, "ViT") == ()


def test_signed_numbers():
    assert [signed(x) for x in (0.5, -0.5, 0.0, -0.0)] == ["+0.5000", "−0.5000", "0.0000", "0.0000"]


def said(found: ExperimentReport) -> str:
    return "\n".join(found.caveats)


def test_what_differs_from_the_paper_is_said():
    words = said(report(note="JPEG, lossy"))
    assert "Ours were trained for 2 epochs; the paper does not say how many." in words
    assert "only 2,000 of 6,000 training images and 1,000 of 2,000 test images were used" in words
    assert "fashion-mnist: JPEG, lossy." in words
    assert "batches of 128, recipe paper, 3 seeds" in words
    assert "Whether u gives the other image's templates weight is not said" in words
    assert "Trained on: cpu, float32." in words
    assert "Another model" not in words
    assert "Recipe strong" not in words


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"device": "cpu", "threads": 2, "precision": "bfloat16"}, "cpu, 2 threads, bfloat16"),
        (
            {
                "device": "cuda:1",
                "device_name": "NVIDIA H100",
                "threads": 16,
                "processes": 4,
                "precision": "bfloat16",
            },
            "NVIDIA H100, 4 processes, bfloat16",
        ),
    ],
)
def test_every_kind_of_machine_is_named_once(machine, words):
    found = report()
    other = replace(found.records[0], machine=machine)
    assert f"Trained on: {words}; cpu, float32." in said(replace(found, records=(other, *found.records[1:])))


def test_a_budget_that_was_changed_is_not_called_by_its_name_alone():
    assert report().title == "Table 2: test accuracy by data set, budget smoke"
    changed = report(options={"epochs": 9, "test_images": None})
    assert changed.title.endswith("budget smoke with test images all, epochs 9")
    assert markdown(changed.results).startswith(f"# {changed.title}\n")


def test_what_does_not_differ_is_not_said():
    words = said(report({"vit": VIT}, budget="paper", options={"epochs": 1}))
    assert "for 1 epoch;" in words
    assert "were used" not in words
    assert "JPEG" not in words
    assert "Whether u gives" not in words


def test_another_model_or_recipe_is_said():
    words = said(report(options={"width": 64, "recipe": "strong"}))
    assert "Another model than the paper's: width 64 for 256." in words
    assert "Recipe strong, with augmentation" in words


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(1, "One seed has no interval"), (2, "Two seeds give an interval too wide to be of use"), (3, None)],
)
def test_fewer_than_three_seeds_are_commented_on(seeds, words):
    found = report({"vit": VIT[:seeds], "ot-vit": OT[:seeds]}, seeds=seeds)
    assert found.finished
    comments = [caveat for caveat in found.caveats if "seed" in caveat.split()[1]]
    assert [comment.startswith(words) for comment in comments] == ([True] if words else [])
    assert ("Student's t" in said(found)) == (seeds > 1)


def test_partial_results_are_called_partial():
    found = report({"vit": VIT[:2], "ot-vit": OT[:1]})
    assert found.caveats[0] == "Partial: 3 of 6 runs have finished."
    assert not any(caveat.startswith("Partial") for caveat in report().caveats)


def test_repr_is_one_line():
    found = report({"vit": VIT[:2], "ot-vit": OT[:1]})
    assert repr(found) == f"<ExperimentReport of {found.title}: 3 of 6 runs>"


def test_reports_survive_json(tmp_path):
    found = replace(report({"vit": VIT, "ot-vit": OT[:2]}), diverged=("one",))
    found.save(tmp_path)
    loaded = ExperimentReport.load(tmp_path)
    assert loaded.to_json() == found.to_json()
    assert loaded.plan == found.plan
    assert ExperimentReport.load(tmp_path / "results.json") == loaded
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["cells"][1]["difference"]["count"] == 2
    assert written["findings"] == list(found.findings)
    assert (tmp_path / "table.md").read_text() == markdown(found.results)


def test_what_is_no_report_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"results.json is not there"):
        ExperimentReport.load(tmp_path)
    for text in ("{", "[]", '{"schema": 1}', "null"):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(InputError, match=r"results\.json is (no|not) .*fenchel experiment --report-only"):
            ExperimentReport.load(tmp_path)
    write_document(tmp_path / "results.json", replace(REPORT_FORM, version=7), {})
    with pytest.raises(InputError, match=r"has schema 7 of a results .*; this one reads schema 2"):
        ExperimentReport.load(tmp_path)


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_table_fits_and_holds_the_numbers(width):
    console_module = pytest.importorskip("rich.console", reason="rich comes with the extra cli")
    console = console_module.Console(width=width, file=io.StringIO())
    console.print(terminal_table(report({"vit": VIT, "ot-vit": OT[:2], "ot-vit-alone": OT[:1]}).results))
    shown = console.file.getvalue()
    assert all(len(line) <= width for line in shown.splitlines())
    for words in (
        "0.8033",
        "± 0.0379",
        "OT-ViT, no",
        "+0.009",
        "fashion-mnist",
        "2 of 3",
        "partial: 6 of 9 runs",
    ):
        assert words in shown, shown


def test_names_are_no_markup():
    console_module = pytest.importorskip("rich.console", reason="rich comes with the extra cli")
    console = console_module.Console(width=200, file=io.StringIO())
    console.print(terminal_table(report(data=["[red]x"]).results))
    assert "[red]x" in console.file.getvalue()


def test_arms_differ_in_line_marker_and_lightness():
    from fenchel.runs.colour import luminance

    for key in ("linestyle", "marker", "color"):
        assert len({str(style[key]) for style in STYLES}) == len(STYLES)
    light = sorted(luminance(style["color"]) for style in STYLES)
    assert all(high - low > 0.05 for low, high in itertools.pairwise(light))


def test_many_arms_have_styles_of_their_own_and_a_legend_that_fits():
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra train")
    from fenchel.experiments.figure import _legend_columns, _style

    styles = {json.dumps(_style(place), sort_keys=True) for place in range(4 * len(STYLES))}
    assert len(styles) == 4 * len(STYLES)
    assert _legend_columns(["ViT", "OT-ViT"]) == 2
    assert _legend_columns(["a label of some length"] * 8) in (3, 4)


def test_curves_are_drawn_the_same_every_time_and_show_the_data(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra train")
    found = report()
    for name in ("one.png", "two.png"):
        write_curves(found.results, tmp_path / name)
    write_curves(report({"vit": VIT, "ot-vit": VIT}).results, tmp_path / "other.png")
    one, two, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two", "other"))
    assert one.startswith(b"\x89PNG")
    assert one == two != other


def test_a_panel_draws_the_mean_and_the_range_of_the_seeds():
    figure_module = pytest.importorskip("matplotlib.figure", reason="matplotlib comes with the extra train")
    from fenchel.experiments.figure import _panel

    axes = figure_module.Figure().add_subplot()
    _panel(axes, report().records, "test_accuracy", tuple(ARMS.values()))
    drawn = dict(zip(("ViT", "OT-ViT"), axes.containers, strict=True))
    assert [container.get_label() for container in axes.containers] == list(drawn)
    for values, container in zip((VIT, OT), drawn.values(), strict=True):
        line, _, (bar,) = container
        ((epoch, mean),) = line.get_xydata().tolist()
        assert epoch == pytest.approx(2, abs=0.2)
        assert mean == pytest.approx(sum(values) / 3)
        ((low, high),) = [segment[:, 1].tolist() for segment in bar.get_segments()]
        assert (low, high) == pytest.approx((min(values), max(values)))
    places = [container[0].get_xdata()[0] for container in drawn.values()]
    assert places[0] < places[1], "bars of the same height would hide each other"


def test_the_legend_covers_no_curve():
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra train")
    from fenchel.experiments.figure import _draw

    arms = {"vit": VIT, "ot-vit": OT, "ot-vit-shared": OT, "ot-vit-alone": VIT, "vit-extra": OT}
    figure = _draw(report(arms, name="ablation").results)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [ARMS[name].label for name in arms]
    box = legend.get_window_extent()
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.width
    (caption,) = figure.texts
    assert caption.get_window_extent().y1 <= box.y0
    for axes in figure.axes:
        assert axes.get_legend() is None
        panel = axes.get_tightbbox()
        assert panel is not None
        assert panel.y0 >= box.y1


def test_seeds_that_agree_have_no_range(tmp_path):
    # The mean of three such numbers is rounded to more than any of them.
    agreed = 0.1
    assert sum([agreed] * 3) / 3 > agreed
    write_curves(report({"vit": (agreed,) * 3, "ot-vit": OT}).results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
