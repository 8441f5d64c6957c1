"""The experiments that can be asked for by name."""

from __future__ import annotations

from dataclasses import dataclass

from fenchel.errors import InputError
from fenchel.experiments.captions import CAPTIONS_BY_HEART, CAPTIONS_HELD_OUT
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.fine_tuning import FINE_TUNED
from fenchel.experiments.pooling import POOLING
from fenchel.experiments.pretraining import BLANKS, TRANSLATED_BLANKS
from fenchel.experiments.reading import MAIN_READERS, READING_PAIRS, READING_SENTENCES
from fenchel.experiments.translation import MAIN_TRANSLATORS, TRANSLATION
from fenchel.experiments.vision import IMAGES

__all__ = ["EXPERIMENTS", "Experiment", "chosen_experiment"]


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what.

    Attributes:
        name: As users type it.
        title: What it reproduces or asks.
        of: What it has in common with others of its kind.
        data: Data sets, where none are named.
        arms: Arms, where none are named.
        learning_rates: Learning rates, where none are named.
    """

    name: str
    title: str
    of: Comparison
    data: tuple[str, ...]
    arms: tuple[str, ...]
    learning_rates: tuple[float, ...]


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1",
            "Table 1: test accuracy by learning rate",
            IMAGES,
            ("cifar100",),
            ("vit", "ot-vit"),
            (3e-3, 3e-4, 3e-5),
        ),
        Experiment(
            "table2",
            "Table 2: test accuracy by data set",
            IMAGES,
            ("fashion-mnist", "cifar10", "cifar100"),
            ("vit", "ot-vit"),
            (3e-4,),
        ),
        Experiment(
            "ablation",
            "Ablation: transport and extra templates, apart and together",
            IMAGES,
            ("fashion-mnist",),
            ("vit", "ot-vit", "ot-vit-shared", "ot-vit-alone", "vit-extra"),
            (3e-4,),
        ),
        Experiment(
            "pooling",
            "Pooling: one learned question by three estimators, and none",
            POOLING,
            ("trec",),
            ("mean", "first-order", "second-order", "exact"),
            (3e-3,),
        ),
        Experiment(
            "translation",
            "Translation: preference, score and estimator, and no attention",
            TRANSLATION,
            ("multi30k",),
            MAIN_TRANSLATORS,
            (2e-3,),
        ),
        *(
            Experiment(
                f"reading-{data}",
                f"Reading {data}: attention to words against none",
                of,
                (data,),
                MAIN_READERS,
                (1e-3,) if data in READING_PAIRS else (2e-3,),
            )
            for data, of in {**READING_SENTENCES, **READING_PAIRS}.items()
        ),
        Experiment(
            "pretraining-blanks",
            "Pretraining: what becomes of chosen words, and what is trained for",
            BLANKS,
            ("wikitext2",),
            tuple(BLANKS.arms),
            (1e-3,),
        ),
        Experiment(
            "pretraining-pairs",
            "Pretraining on pairs: hidden words with and without the translation",
            TRANSLATED_BLANKS,
            ("multi30k",),
            tuple(TRANSLATED_BLANKS.arms),
            (1e-3,),
        ),
        Experiment(
            "pretraining-trec",
            "Fine-tuned on TREC: after each pretraining and after none",
            FINE_TUNED,
            ("trec",),
            tuple(FINE_TUNED.arms),
            (5e-4,),
        ),
        Experiment(
            "captions-by-heart",
            "Captions by heart: soft, hard and no attention on 154 images",
            CAPTIONS_BY_HEART,
            ("coco-mini",),
            tuple(CAPTIONS_BY_HEART.arms),
            (2e-3,),
        ),
        Experiment(
            "captions-held-out",
            "Captions of images held out: what learning by heart is worth",
            CAPTIONS_HELD_OUT,
            ("coco-mini",),
            ("mean", "soft", "hard"),
            (2e-3,),
        ),
    )
}
"""All experiments by name."""


def chosen_experiment(name: str) -> Experiment:
    """Looks an experiment up.

    Args:
        name: One of ``EXPERIMENTS``.

    Returns:
        The experiment.

    Raises:
        InputError: If there is none of that name.

    Example:
        >>> chosen_experiment("table1").learning_rates
        (0.003, 0.0003, 3e-05)
    """
    if name not in EXPERIMENTS:
        raise InputError(
            f"experiment is {name!r}; expected one of {', '.join(EXPERIMENTS)}. 'fenchel experiment --help' says more."
        )
    return EXPERIMENTS[name]
