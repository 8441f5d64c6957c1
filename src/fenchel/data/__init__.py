"""Images and texts: reading them, and giving them to a model in batches."""

from __future__ import annotations

from fenchel.data.articles import Articles
from fenchel.data.captioned_images import CaptionedImages
from fenchel.data.coco_mini import load_captions
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.labelled_pairs import LabelledPairs
from fenchel.data.labelled_texts import load_labelled_pairs, load_labelled_sentences
from fenchel.data.load import load
from fenchel.data.multi30k import load_pairs
from fenchel.data.paired_batches import PairedBatches
from fenchel.data.parallel import ParallelCorpus, SentencePairs
from fenchel.data.sentences import Sentences
from fenchel.data.splits import Splits
from fenchel.data.standardise import Standardise
from fenchel.data.subwords import Subwords
from fenchel.data.trec import load_sentences
from fenchel.data.vocabulary import Vocabulary
from fenchel.data.wikitext2 import load_articles

__all__ = [
    "Articles",
    "CaptionedImages",
    "ImageDataset",
    "LabelledPairs",
    "PairedBatches",
    "ParallelCorpus",
    "SentencePairs",
    "Sentences",
    "Splits",
    "Standardise",
    "Subwords",
    "Vocabulary",
    "load",
    "load_articles",
    "load_captions",
    "load_labelled_pairs",
    "load_labelled_sentences",
    "load_pairs",
    "load_sentences",
]
