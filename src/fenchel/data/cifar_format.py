"""What CIFAR-10 and CIFAR-100 call their files, and what the official ones hold."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CIFAR10", "CIFAR100", "CifarFormat"]


@dataclass(frozen=True)
class CifarFormat:
    """Names and counts of one of the two.

    Attributes:
        name: ``cifar10`` or ``cifar100``.
        class_names: Of the (fine) classes.
        python_folder: The folder in the official python archive.
        binary_folder: The folder in the official binary archive.
        python_files: Split to the batches that it is made of.
        binary_files: The same in the binary version.
        python_meta: File of the class names, and their key in it.
        binary_meta: File of the class names, one a line.
        label_key: Of the labels in a python batch.
        label_bytes: Before the pixels of an image in a binary batch; the last of them is the label.
        md5: Published checksums of the python files.
        counts: Images of each split in the official files.
    """

    name: str
    class_names: tuple[str, ...] = field(repr=False)
    python_folder: str
    binary_folder: str
    python_files: dict[str, tuple[str, ...]]
    binary_files: dict[str, tuple[str, ...]]
    python_meta: tuple[str, str]
    binary_meta: str
    label_key: str
    label_bytes: int
    md5: dict[str, str] = field(repr=False)
    counts: dict[str, int]

    def __hash__(self) -> int:
        return hash(self.name)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

CIFAR10 = CifarFormat(
    name="cifar10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    python_folder="cifar-10-batches-py",
    binary_folder="cifar-10-batches-bin",
    python_files={"train": _BATCHES, "test": ("test_batch",)},
    binary_files={"train": tuple(f"{batch}.bin" for batch in _BATCHES), "test": ("test_batch.bin",)},
    python_meta=("batches.meta", "label_names"),
    binary_meta="batches.meta.txt",
    label_key="labels",
    label_bytes=1,
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    counts={"train": 50_000, "test": 10_000},
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

CIFAR100 = CifarFormat(
    name="cifar100",
    class_names=tuple(_CIFAR100_CLASSES.split()),
    python_folder="cifar-100-python",
    binary_folder="cifar-100-binary",
    python_files={"train": ("train",), "test": ("test",)},
    binary_files={"train": ("train.bin",), "test": ("test.bin",)},
    python_meta=("meta", "fine_label_names"),
    binary_meta="fine_label_names.txt",
    label_key="fine_labels",
    label_bytes=2,
    md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    counts={"train": 50_000, "test": 10_000},
)
