"""A vision transformer that says which patches matter before any query has looked at them.

Its attention has a ``Context`` preference: a small network reads the whole image and proposes an importance for every
patch, which multiplies what the queries find. The images are made up: one patch of sixteen holds a pattern, which
is the class, and the others hold noise that is stronger. The script trains for some seconds and then shows where
the preference lies. Nobody told it where the pattern is.

    python examples/vit_context.py [steps]
"""

import torch
from torch import Tensor, nn

from experiment import run_positional
from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import AttentionInputs, Context

GRID, PATCH, WIDTH, HEADS, CLASSES = 4, 4, 32, 4, 4
PATTERNS = torch.randn(CLASSES, PATCH * PATCH, generator=torch.Generator().manual_seed(7)).sign()


def draw(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images as patches (count, 16, 16), their classes, and the patch that holds the pattern."""
    classes, places = torch.randint(CLASSES, (count,)), torch.randint(GRID * GRID, (count,))
    images = 1.5 * torch.randn(count, GRID * GRID, PATCH * PATCH)
    images[torch.arange(count), places] = PATTERNS[classes] + 0.5 * torch.randn(count, PATCH * PATCH)
    return images, classes, places


class VisionTransformer(nn.Module):
    """Patches and a class token, through one of torch's encoder layers with our attention in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(1 + GRID * GRID, WIDTH))
        shape = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, **shape)
        self.preference = Context(HEADS, key_dim=WIDTH)
        self.layer.self_attn = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=self.preference)
        self.classify = nn.Linear(WIDTH, CLASSES)

    def tokens(self, images: Tensor) -> Tensor:
        """The class token, then the patches, (B, 17, width)."""
        return nn.functional.pad(self.embed(images), (0, 0, 1, 0)) + self.position

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the classes."""
        return self.classify(self.layer(self.tokens(images))[:, 0])

    def preferred(self, images: Tensor) -> Tensor:
        """The preference u over the patches, the mean over heads, (B, 16)."""
        x = self.layer.norm1(self.tokens(images))
        inputs = AttentionInputs(len(x), HEADS, x.shape[1], x.shape[1], x.device, x.dtype, key_inputs=x)
        log_u = self.preference(inputs)
        return torch.as_tensor(log_u)[:, :, 0, 1:].softmax(-1).mean(1)


def main(steps: int = 300) -> None:
    """Train, and look at the preference before and after."""
    torch.manual_seed(0)
    model = VisionTransformer()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    images, classes, places = draw(1000)

    def report(step: int) -> None:
        with torch.no_grad():
            right = (model(images).argmax(1) == classes).float().mean()
            preferred = model.preferred(images)
            result = (preferred.argmax(1) == places).float().mean()
            weight = preferred[torch.arange(len(places)), places].mean()
        said = f"the pattern's patch has preference {weight:.2f} and is the most preferred in {result:.0%}"
        print(f"step {step:3}: {right:.0%} of new images right; {said}")

    print("Before training all places are alike: the preference of each is 1/17, the class token's too.")
    report(0)
    for step in range(1, steps + 1):
        batch, labels, _ = draw(128)
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in (1, steps):
            report(step)

    print("The preference on one image, in percent; the pattern is in brackets:")
    grid = (100 * model.preferred(images[:1])[0]).round().int().tolist()
    cells = [f"[{u:2}]" if i == places[0] else f" {u:2} " for i, u in enumerate(grid)]
    print("\n".join("  " + "".join(cells[row : row + GRID]) for row in range(0, GRID * GRID, GRID)))


if __name__ == "__main__":
    run_positional(main, __doc__, steps=1)
