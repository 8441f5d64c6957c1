"""The loop of all examples: training on accelerate, with checkpoints, the best epoch, metrics and curves.

A script gives a :class:`task.Task` and options that derive from :class:`task.Options`, and calls :func:`main`.
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import accelerate
import matplotlib.pyplot as plt
import torch
from accelerate.utils import gather_object, set_seed
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import HfArgumentParser, get_scheduler

from fenchel.errors import FenchelError, InputError
from task import FREE, Batch, Options, Record, Task, to_device

Make = Callable[[Any], Task]
BEST, OPTIONS, METRICS = "best.safetensors", "options.json", "metrics.json"
STATE = ("epoch", "step", "total", "terms", "seconds", "history")


class Training:
    """One run: a task, its model, and the folder that it is kept in."""

    def __init__(self, make: Make, options: Options) -> None:
        self.options, self.folder = options, Path(options.out)
        if not options.out:
            raise InputError("no folder was given for the run. Give --out DIR.")
        # Without cpu=True accelerate does not join processes that have no GPU.
        without = not torch.accelerator.is_available()
        self.accelerator = accelerate.Accelerator(cpu=without, mixed_precision=options.mixed_precision)
        self.main = self.accelerator.is_main_process
        self.task = make(options)
        for name, examples in self.task.splits.items():
            if not len(examples):
                raise InputError(f"{options.data} leaves no example for {name}. Give more data.")
        set_seed(options.seed)
        model = self.task.model()
        check_precision(model, self.accelerator)
        decayed = [one for one in model.parameters() if one.dim() > 1]
        others = [one for one in model.parameters() if one.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others}]
        optimiser = torch.optim.AdamW(groups, options.learning_rate, weight_decay=0.0, fused=True)
        self.steps = len(list(self.task.batches("train", options.batch_size, 0)))  # of an epoch
        steps = options.epochs * self.steps
        scheduler = get_scheduler(options.schedule, optimiser, int(options.warmup * steps), steps)
        self.model, self.optimiser = self.accelerator.prepare(model, optimiser)
        self.scheduler = scheduler  # not prepared: accelerate steps a prepared one once for each process
        self.accelerator.register_for_checkpointing(scheduler, self)
        self.epoch = self.step = self.terms = 0  # total and terms are of the epoch so far
        self.total = self.seconds = 0.0
        self.history: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, for accelerate's checkpoint."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        vars(self).update(state)

    def run(self) -> dict[str, Any]:
        """Train, select the best epoch, and test.

        Returns:
            The content of ``metrics.json``.
        """
        self._open()
        done, steps = self.epoch * self.steps + self.step, self.options.epochs * self.steps
        # A file of the output gets a line every ten seconds, a terminal ten a second.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        quiet = self.options.quiet or not self.main
        with tqdm(total=steps, initial=done, disable=quiet, unit="step", mininterval=interval) as bar:
            while self.epoch < self.options.epochs:
                self._train_epoch(bar)
                self._end_epoch(bar)
        plain = self.accelerator.unwrap_model(self.model)
        load_model(plain, self.folder / BEST)
        records = self.answers("test")
        result = {
            "task": self.task.name,
            "options": asdict(self.options),
            "parameters": sum(one.numel() for one in plain.parameters()),
            "best_epoch": self._best()["epoch"],
            "test": self.task.metrics(records),
            "epochs": self.history,
            "train_seconds": round(self.seconds, 3),
            "processes": self.accelerator.num_processes,
            "torch": torch.__version__,
        }
        if self.main:
            write(self.folder / "test.jsonl", "".join(json.dumps(record) + "\n" for record in records))
            write(self.folder / METRICS, json.dumps(result, indent=1) + "\n")
            draw_curves(self.history, self.task.metric, self.folder / "curves.png")
        self.accelerator.wait_for_everyone()
        return result

    def answers(self, split: str) -> list[Record]:
        """The records of a split in its order; each process answers a part of the batches."""
        self.model.eval()
        plain = self.accelerator.unwrap_model(self.model)
        parts = list(self.task.batches(split, self.options.batch_size, None))
        result = []
        with torch.no_grad(), self.accelerator.autocast():
            for numbers in parts[self.accelerator.process_index :: self.accelerator.num_processes]:
                examples = [self.task.splits[split][one] for one in numbers]
                batch = to_device(self.task.batch(examples, training=False), self.accelerator.device)
                result += zip(numbers, self.task.records(plain, batch), strict=True)
        return [record for _, record in sorted(gather_object(result), key=lambda one: one[0])]

    def _open(self) -> None:
        """Make the folder of a new run, or go back to the checkpoint of an interrupted one."""
        options, file = self.options, self.folder / OPTIONS
        kept = {"task": self.task.name} | {k: v for k, v in asdict(options).items() if k not in FREE}
        if options.resume:
            if not (there := checkpoints(self.folder)):
                raise InputError(f"{self.folder} has no checkpoint to resume. Begin with --overwrite.")
            before = json.loads(file.read_text())
            for name in kept:
                if before.get(name) != kept[name]:
                    raise InputError(
                        f"{self.folder} was begun with {name} {before.get(name)!r}, and now it is {kept[name]!r}. "
                        "Give the same options, or another --out."
                    )
            self.accelerator.load_state(str(there[-1]))
            return
        if file.is_file() and not options.overwrite:
            raise InputError(f"{self.folder} holds a run. Give --resume, --overwrite or another --out.")
        self.accelerator.wait_for_everyone()
        if self.main:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (self.folder / BEST, self.folder / METRICS):
                path.unlink(missing_ok=True)
            for path in checkpoints(self.folder):
                shutil.rmtree(path)
            write(file, json.dumps(kept, indent=1) + "\n")
        self.accelerator.wait_for_everyone()

    def _train_epoch(self, bar: tqdm) -> None:
        options, accelerator = self.options, self.accelerator
        rank, count = accelerator.process_index, accelerator.num_processes
        self.model.train()
        started = saved = time.monotonic()
        for number, indices in enumerate(self.task.batches("train", options.batch_size, self.epoch)):
            if number < self.step:
                continue
            own = indices[rank * len(indices) // count : (rank + 1) * len(indices) // count]
            examples = [self.task.splits["train"][one] for one in own or indices[:1]]
            batch = to_device(self.task.batch(examples, training=True), accelerator.device)
            with accelerator.autocast():
                loss, terms = self.task.loss(self.model, batch)
            # A process without an example of its own computes one without weight: gradients are still gathered.
            counts = bool(own)
            due = time.monotonic() - saved >= options.checkpoint_seconds
            sums = torch.tensor([float(loss.detach()) * counts, terms * counts, due])
            total, every, due = cast(Tensor, accelerator.reduce(sums.to(accelerator.device))).tolist()
            if not math.isfinite(total):
                raise InputError(
                    f"the loss is {total} at epoch {self.epoch + 1}, step {number + 1}. Lower --learning_rate or give "
                    f"--clip_norm; what was saved before stays in {self.folder}."
                )
            accelerator.backward(loss * (count / every * counts))
            if options.clip_norm:
                accelerator.clip_grad_norm_(self.model.parameters(), options.clip_norm)
            self.optimiser.step()
            self.scheduler.step()
            self.optimiser.zero_grad()
            self.step, self.total, self.terms = number + 1, self.total + total, self.terms + int(every)
            bar.update()
            bar.set_postfix(epoch=self.epoch + 1, loss=f"{self.total / self.terms:.4g}", refresh=False)
            if due:
                self.seconds += time.monotonic() - started
                self._save()
                started = saved = time.monotonic()
        self.seconds += time.monotonic() - started

    def _end_epoch(self, bar: tqdm) -> None:
        started = time.monotonic()
        result = self.task.metrics(self.answers("validation"))
        self.epoch += 1
        row = {"epoch": self.epoch, "train_loss": self.total / self.terms, "validation": result}
        self.history.append(row | {"validation_seconds": round(time.monotonic() - started, 3)})
        if self.main:
            said = ", ".join(f"{name} {value:.4g}" for name, value in result.items())
            bar.write(f"epoch {self.epoch}: training loss {row['train_loss']:.4g}; validation {said}")
            if self._best()["epoch"] == self.epoch:
                new = self.folder / f"{BEST}.new"
                save_model(self.accelerator.unwrap_model(self.model), str(new))
                new.replace(self.folder / BEST)
        self.step, self.total, self.terms = 0, 0.0, 0
        self._save()

    def _best(self) -> dict[str, Any]:
        """The row of the best epoch, the first of equal ones."""
        sign = 1 if self.task.larger_is_better else -1
        return max(self.history, key=lambda row: sign * row["validation"][self.task.metric])

    def _save(self) -> None:
        """Write a checkpoint beside the last one, give it its name, and remove the last one."""
        new = Path(self.accelerator.save_state(str(self.folder / "checkpoint.new")))
        self.accelerator.wait_for_everyone()  # every process writes the state of its generators into it
        if self.main:
            before = checkpoints(self.folder)
            new.rename(self.folder / f"checkpoint-{self.epoch}-{self.step}")
            for path in before:
                shutil.rmtree(path)
        self.accelerator.wait_for_everyone()


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, the oldest first."""
    return sorted(folder.glob("checkpoint-*-*"), key=lambda one: [int(n) for n in one.name.split("-")[1:]])


def check_precision(model: nn.Module, accelerator: accelerate.Accelerator) -> None:
    """Refuse a precision that this processor cannot compute a recurrent layer in, before the first step.

    Raises:
        InputError: Saying so.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    if accelerator.mixed_precision == "no" or accelerator.device.type != "cpu" or not recurrent:
        return
    try:
        with accelerator.autocast():
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))[0].sum().backward()
    except RuntimeError as error:
        what = f"recurrent layers in {accelerator.mixed_precision} ({str(error).splitlines()[0]})"
        raise InputError(f"this processor cannot train {what}. Give --mixed_precision no.") from error


def draw_curves(history: list[dict[str, Any]], metric: str, path: Path) -> None:
    """Draw the training loss and the metric on the validation data over the epochs."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    epochs = [row["epoch"] for row in history]
    axes[0].plot(epochs, [row["train_loss"] for row in history], marker="o")
    axes[1].plot(epochs, [row["validation"][metric] for row in history], marker="o")
    axes[0].set(xlabel="epoch", ylabel="training loss")
    axes[1].set(xlabel="epoch", ylabel=f"validation {metric}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(path: Path, text: str) -> None:
    """Write a file beside its place, and rename it."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def load_run(make: Make, kind: type[Options], folder: str | Path) -> tuple[Any, nn.Module]:
    """The task of a run and its model of the best epoch, in evaluation mode.

    Raises:
        InputError: If the folder holds no run whose first epoch has ended, or one of another example.
    """
    folder = Path(folder)
    if not (folder / BEST).is_file():
        raise InputError(f"{folder} holds no run with an epoch that has ended. Give the --out of a training.")
    options = json.loads((folder / OPTIONS).read_text())
    name = options.pop("task")
    if unknown := sorted({*options} - {one.name for one in fields(kind)}):
        raise InputError(
            f"{folder} is a run of {name}, which has the option {unknown[0]}. Use examples/{name}.py."
        )
    task = make(kind(**options, out=str(folder)))
    model = task.model()
    load_model(model, folder / BEST)
    return task, model.eval()


def load_test(make: Make, kind: type[Options], folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and the batches of its test, for ``fenchel audit`` and ``fenchel swap``."""
    task, model = load_run(make, kind, folder)
    result = []
    for numbers in task.batches("test", 50, None):
        examples = [task.splits["test"][one] for one in numbers]
        batch = task.batch(examples, training=False)
        known = {"documents": [one + 1 for one in numbers], "windows": [1] * len(numbers)}
        result.append(known | task.audited(examples, batch))
    return model, result


def heatmap(weights: Tensor, rows: Sequence[str], columns: Sequence[str], path: str, title: str = "") -> None:
    """Draw weights (m, n) between tokens into a file; white is 0, and the darkest colour the largest weight."""
    size = [min(0.6 + 0.26 * count, 40.0) for count in weights.shape]
    figure, axes = plt.subplots(figsize=(size[1] + 0.6, size[0]))
    values = weights.detach().float().cpu().numpy()
    image = axes.imshow(values, cmap="Purples", vmin=0.0, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.xaxis.tick_top()
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be drawn: {error}. Give a file such as weights.png.") from None
    finally:
        plt.close(figure)


def main(make: Make, kind: type[Options], use: Callable[..., None], use_kind: type, **others: Any) -> None:
    """The command line of an example: ``train``, ``use DIR``, and what else it has.

    Args:
        make: Makes the task of options.
        kind: Options of the training.
        use: What is done with a trained model: called with the task, the model and the options of ``use_kind``.
        use_kind: Its options, a dataclass.
        others: Further commands: what is called with the options, and their dataclass.
    """
    script, (command, *rest) = Path(sys.argv[0]).name, sys.argv[1:] or [""]
    kinds = {"train": kind, "use": use_kind} | {name: options for name, (_, options) in others.items()}
    if command not in kinds:
        commands = " | ".join(["train --data toy --out DIR [--resume]", "use DIR", *others])
        usage = f"usage: {script} {commands}; each has --help"
        if command not in ("-h", "--help"):
            sys.exit(usage)
        print(usage)
        return
    parser = HfArgumentParser(kinds[command], prog=f"{script} {command}")
    if command == "use":
        parser.add_argument("run", metavar="DIR", help="--out of the training")
    try:
        options, *named, unknown = parser.parse_args_into_dataclasses(rest, return_remaining_strings=True)
        if unknown:
            raise InputError(f"there is no option {unknown[0]}. {script} {command} --help lists all.")
        if command == "train":
            result = Training(make, options).run()
            if accelerate.PartialState().is_main_process:
                print(f"test: {json.dumps(result['test'])}; in {options.out}/{METRICS}")
        elif command == "use":
            use(*load_run(make, kind, named[0].run), options)
        else:
            others[command][0](options)
    except FenchelError as error:
        sys.exit(f"{script}: {error}")
