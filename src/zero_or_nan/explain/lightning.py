"""A callback for Lightning, under either package name. No other file imports this one, because it needs Lightning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .probe.probing import probe
from .training.methods import ExplainedMethod, put_back

_NAMES = ("lightning.pytorch", "pytorch_lightning")
"""Two packages with the same code, but each with its own class `Callback`."""


def _callback_classes() -> tuple[Any, ...]:
    """Those that the user has imported, or else the first that is installed."""
    modules = [sys.modules[name] for name in _NAMES if sys.modules.get(name)]
    missing = None
    for name in _NAMES:
        if not modules:
            try:
                modules.append(importlib.import_module(name))
            except ImportError as error:
                missing = error
    if not modules:
        raise ImportError("zero_or_nan.explain.lightning needs Lightning: run pip install lightning") from missing
    return tuple(module.Callback for module in modules)


class ExplainCallback(*_callback_classes()):  # type: ignore[misc]
    """Stops Lightning's Trainer at the first batch whose loss or gradient is not finite, and explains the batch.

    During a training run, `explain.on_failure` decorates everything that the trainer does for a batch: `training_step`,
    backward, clipping and the optimizer's step. If the trainer accumulates gradients, each batch is checked. Manual
    optimization needs no other setup.

    Args:
        probe: search the loss of the first batch with `explain.probe` before the training step, and print the report.
            The search takes at most about 10 seconds. It is skipped if several processes train, or if the module
            optimizes manually, because its `training_step` then returns no loss.

    Raises:
        NotFiniteError: from `trainer.fit()`, before the optimizer uses the gradient. The report names the step, the
            epoch and the batch.

    Example::

        from zero_or_nan.explain.lightning import ExplainCallback

        trainer = Trainer(callbacks=[ExplainCallback()])
        trainer.fit(model, data)
    """

    def __init__(self, probe: bool = False) -> None:
        super().__init__()
        self.probe = probe

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Decorate the `run` of the trainer's optimization loops."""
        for loop in _optimization(trainer):
            _Run(loop, "run", pl_module, probe if self.probe and pl_module.automatic_optimization else None)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore the loops' own `run`."""
        for loop in _optimization(trainer):
            put_back(loop, "run")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restore the loops' own `run`."""
        self.teardown(trainer, pl_module, "fit")


def _optimization(trainer: Any) -> list[Any]:
    """The loops whose method `run` takes a batch, and does all that the trainer does with it."""
    loop = trainer.fit_loop.epoch_loop
    return [loop.automatic_optimization, loop.manual_optimization]


class _Run(ExplainedMethod):
    def keep(self) -> Any:
        counts = [count for count in vars(self.owner).values() if hasattr(count, "load_state_dict")]
        return [(count, count.state_dict()) for count in counts]

    def restore(self, counts: Any) -> None:
        for count, kept in counts:
            count.load_state_dict(kept)

    def loss_fn(self, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def loss(*inputs: Any) -> Any:
            with self.owner.trainer.precision_plugin.train_step_context():
                return self.model.training_step(*inputs)

        return loss, (*args[-1].values(),)

    @contextmanager
    def aside(self) -> Iterator[None]:
        with super().aside():
            self.model.log = self.model.log_dict = lambda *args, **kwargs: None
            yield

    def loss_of(self, result: Any) -> Any:
        return (result or {}).get("loss")

    def notes(self, loss: Any) -> Iterator[str]:
        trainer = self.owner.trainer
        yield (
            f"Lightning stopped at global_step {trainer.global_step}, in epoch {trainer.current_epoch}, "
            f"at batch {trainer.fit_loop.batch_idx}"
        )
