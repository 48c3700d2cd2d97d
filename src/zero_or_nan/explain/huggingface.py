"""A callback for Hugging Face's Trainer. This file needs `transformers`, so no other file imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError("zero_or_nan.explain.huggingface needs transformers: run pip install transformers") from error

from .probe.probing import probe
from .program.tensors import are_finite_at_once, tensors_in
from .training.methods import ExplainedMethod, put_back


class ExplainCallback(TrainerCallback):
    """Stops Hugging Face's Trainer at the first batch whose loss or gradient is not finite, and explains the batch.

    During a training run, `explain.on_failure` decorates the trainer's `training_step`. If the trainer accumulates
    gradients, each batch is checked. The trainers of TRL take the same callback: it was tried with `SFTTrainer` and
    `GRPOTrainer` of TRL 1.16.0.

    Args:
        probe: search the loss of the first batch with `explain.probe` before the training step, and print the report.
            The search takes at most about 10 seconds. It is skipped if several processes train.

    Raises:
        NotFiniteError: from `trainer.train()`, before the optimizer uses the gradient. The report names the step. The
            Trainer's `logging_nan_inf_filter`, which is on by default, keeps NaN losses out of the log. The report says
            if this filter would have hidden the loss.

    Example::

        from zero_or_nan.explain.huggingface import ExplainCallback

        trainer = Trainer(model, args, train_dataset=data, callbacks=[ExplainCallback()])
        trainer.train()
    """

    def __init__(self, probe: bool = False) -> None:
        self.probe = probe

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decorate the trainer's `training_step`."""
        _TrainingStep(self, self._trainer(), kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the trainer's own `training_step`."""
        put_back(self._trainer(), "training_step")

    def is_of(self, trainer: Trainer) -> bool:
        """Whether a trainer has this callback."""
        return any(callback is self for callback in trainer.callback_handler.callbacks)

    def _trainer(self) -> Trainer:
        """The trainer that called. A trainer does not pass itself to its callbacks, so it is taken from its frame."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            caller = frame.f_locals.get("self")
            if isinstance(caller, Trainer) and self.is_of(caller):
                return caller
            frame = frame.f_back
        raise RuntimeError("no Trainer that has this callback called it: use Trainer(…, callbacks=[ExplainCallback()])")


class _TrainingStep(ExplainedMethod):
    def __init__(self, callback: ExplainCallback, trainer: Trainer, model: Any) -> None:
        super().__init__(trainer, "training_step", model, probe if callback.probe else None)
        self.callback = callback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.callback.is_of(self.owner):
            return super().__call__(*args, **kwargs)
        # An exception outside the steps ended the training run, and the callback was removed since then.
        put_back(self.owner, self.name)
        return self.method(*args, **kwargs)

    def loss_fn(self, model: Any, batch: Any, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def loss(batch: Any) -> Any:
            model.train()  # as `training_step` does
            with self.owner.compute_loss_context_manager():
                return self.owner.compute_loss(model, batch)

        return loss, (self.owner._prepare_inputs(batch),)

    def notes(self, loss: Any) -> Iterator[str]:
        yield f"the Trainer stopped at global_step {self.owner.state.global_step}"
        if self.owner.args.logging_nan_inf_filter and not are_finite_at_once(tensors_in(loss)):
            yield (
                "the Trainer would have hidden this loss: with logging_nan_inf_filter=True it logs the average of the "
                "losses before it instead, or 0"
            )
