"""A tiny vision transformer in a folder with its image processor, and folders of images."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import ViTConfig, ViTModel, ViTPreTrainedModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIDE, PATCH = 8, 4
PATCHES = (SIDE // PATCH) ** 2


def saved_vision_model(folder: Path, kind: type[ViTPreTrainedModel] = ViTModel, **options: Any) -> Any:
    """A model of two layers and its processor; what was saved in ``folder``."""
    sizes = {"image_size": SIDE, "patch_size": PATCH, "hidden_size": 24, "intermediate_size": 32}
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        model = kind(
            ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.5, **options)
        ).eval()
    model.save_pretrained(folder)
    channels = model.config.num_channels
    processor = ViTImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * channels, image_std=[0.25] * channels
    )
    processor.save_pretrained(folder)
    return model


def image_folder(folder: Path, count: int = 3) -> Path:
    """Images of different sizes, modes and formats, and a file that is none."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = [("RGB", "png"), ("L", "png"), ("RGBA", "png"), ("RGB", "jpg"), ("P", "gif")]
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        mode, suffix = forms[number % len(forms)]
        height, width = 6 + number, 9 + 2 * number
        pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
        picture = Image.frombytes("RGB", (width, height), bytes(pixels.flatten().tolist()))
        picture.convert(mode).save(folder / f"{number}.{suffix}")
    (folder / "notes.txt").write_text("no image")
    return folder
