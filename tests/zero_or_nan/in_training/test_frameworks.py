"""In Lightning, Fabric and Accelerate: whatever else their own `backward` does is to stay.

Plain PyTorch is the framework as it comes.
"""

import pytest
import torch
from comparing import GOOD, STEPS, compare, compared, loss_of, network, state
from torch.utils.data import DataLoader

from zero_or_nan import ignoring

# Frameworks have warnings of their own; `compare` lets none of ours pass.
pytestmark = pytest.mark.filterwarnings("ignore")

MIXED = [("bf16-mixed", 1e-2), ("16-mixed", 2e-3)]


def scaler_for(precision):
    return torch.amp.GradScaler("cpu", init_scale=256.0) if precision == "16-mixed" else None


@pytest.fixture
def pl():
    return pytest.importorskip("pytorch_lightning")


@pytest.fixture
def module_type(pl):
    """What the modules below have in common."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seen = network(), []

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_before_backward(self, loss):
            self.seen.append(loss.detach())

        def on_after_backward(self):
            self.seen.append(self.model[0].weight.grad.norm())

        def fitted(self, batches, precision, **options):
            """What a trainer makes of it, a step for each batch, and what the hooks saw."""
            mixed = precision != "32-true"
            quiet = ["enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"]
            trainer = pl.Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=1,
                plugins=[pl.plugins.MixedPrecision(precision, "cpu", scaler_for(precision))] if mixed else [],
                **dict.fromkeys(quiet, False),
                **options,
            )
            trainer.fit(self, DataLoader(batches, batch_size=None))
            return [*self.seen, *state(self.model, self.seen[-2])]

    return Module


@pytest.mark.setup(
    "Lightning",
    "def backward(self, loss, *args, **kwargs):\n    ignoring.backward(loss, *args, **kwargs)",
    "A method of your `LightningModule`. Scaling by the precision plugin, accumulation, clipping and hooks stay. "
    "DeepSpeed would not call it.",
)
@pytest.mark.parametrize("precision, rtol", [("32-true", 1e-5), *MIXED])
def test_lightning(module_type, precision, rtol):
    def train(ignoring, rows):
        class Module(module_type):
            def training_step(self, part):
                return loss_of(self.model, part)

            def backward(self, loss, *args, **kwargs):
                ignoring.backward(loss, *args, **kwargs)

        if ignoring is torch.autograd:
            del Module.backward
        parts = [*rows.chunk(3)] * STEPS
        return Module().fitted(parts, precision, accumulate_grad_batches=3, gradient_clip_val=1.0)

    compare(train, rtol=rtol, atol=rtol / 10)


@pytest.mark.setup(
    "Lightning, manual optimization",
    "def backward(self, loss, *args, **kwargs):\n    ignoring.backward(loss, *args, **kwargs)\n"
    "self.manual_backward(loss)",
    "`manual_backward` scales the loss, runs the hooks, and then calls the `backward` that you wrote.",
)
@compared(rtol=2e-3, atol=2e-4)
def test_lightning_with_manual_optimization(ignoring, rows, module_type):
    class Module(module_type):
        automatic_optimization = False

        def backward(self, loss, *args, **kwargs):
            ignoring.backward(loss, *args, **kwargs)

        def training_step(self, rows):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = loss_of(self.model, rows)
            self.manual_backward(loss)
            optimizer.step()

    if ignoring is torch.autograd:
        del Module.backward
    return Module().fitted([rows] * STEPS, "16-mixed")


@pytest.fixture
def fabric_with():
    """A Fabric with plugins."""
    lightning_fabric = pytest.importorskip("lightning_fabric")
    return lambda *plugins: lightning_fabric.Fabric(accelerator="cpu", devices=1, plugins=list(plugins))


def trained_in(fabric, backward, rows):
    model = network()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(wrapped, rows)
        backward(loss)
        optimizer.step()
    return state(model, loss)


@pytest.mark.setup(
    "Fabric",
    "ignoring.backward(loss)",
    "In place of `fabric.backward(loss)`, at full precision. Mixed precision needs the next row.",
)
@compared()
def test_fabric(ignoring, rows, fabric_with):
    def step(loss):
        if ignoring is torch.autograd:
            fabric.backward(loss)
        else:
            ignoring.backward(loss)

    fabric = fabric_with()
    return trained_in(fabric, step, rows)


@pytest.mark.setup(
    "Fabric with mixed precision",
    "class Ours(MixedPrecision):\n    def backward(self, loss, model, *args, **kwargs):\n"
    "        if self.scaler is not None:\n            loss = self.scaler.scale(loss)\n"
    "        ignoring.backward(loss, *args, **kwargs)",
    'With `Fabric(plugins=Ours("16-mixed", "cuda"))` your `fabric.backward(loss)` goes through it.',
)
@pytest.mark.parametrize("precision, rtol", MIXED)
def test_fabric_with_mixed_precision(fabric_with, precision, rtol):
    from lightning_fabric.plugins import MixedPrecision

    def train(ignoring, rows):
        class Ours(MixedPrecision):
            def backward(self, loss, model, *args, **kwargs):
                if self.scaler is not None:
                    loss = self.scaler.scale(loss)
                ignoring.backward(loss, *args, **kwargs)

        if ignoring is torch.autograd:
            del Ours.backward
        fabric = fabric_with(Ours(precision, "cpu", scaler_for(precision)))
        return trained_in(fabric, fabric.backward, rows)

    compare(train, rtol=rtol, atol=rtol / 10)
    with pytest.raises(RuntimeError, match="requires you to call `fabric.backward"):
        trained_in(fabric_with(MixedPrecision(precision, "cpu")), ignoring.backward, GOOD)


@pytest.fixture
def accelerate():
    accelerate = pytest.importorskip("accelerate")
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.setup(
    "Accelerate",
    "loss = loss / accelerator.gradient_accumulation_steps\nif accelerator.scaler is not None:\n"
    "    loss = accelerator.scaler.scale(loss)\nignoring.backward(loss)",
    "These lines replace `accelerator.backward(loss)`. Don't use them with DeepSpeed, Megatron-LM and LOMO.",
)
@pytest.mark.parametrize("scaled", [False, True])
@compared()
def test_accelerate(ignoring, rows, accelerate, scaled):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    if scaled:  # Accelerate makes one on accelerators only
        accelerator.scaler = scaler_for("16-mixed")
    model = network()
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for part in [*rows.chunk(3)] * STEPS:
        with accelerator.accumulate(prepared):
            loss = kept = loss_of(prepared, part)
            if ignoring is torch.autograd:
                accelerator.backward(loss)
            else:
                loss = loss / accelerator.gradient_accumulation_steps
                if accelerator.scaler is not None:
                    loss = accelerator.scaler.scale(loss)
                ignoring.backward(loss)
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return [*gradients, *state(model, kept)]


@pytest.mark.setup(
    "Hugging Face's Trainer, also with `bf16=True`",
    "trainer = Trainer(model, arguments, train_dataset=data)\ntrainer.accelerator.backward = ignoring.backward\n"
    "trainer.train()",
    "Not with `fp16=True`, because the replaced method also scales the loss, nor with DeepSpeed. Tested on CPUs.",
)
@pytest.mark.parametrize("half", [True, False])
def test_the_trainer_of_hugging_face(accelerate, tmp_path, half):
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, rows):
            return {"loss": loss_of(self.body, rows)}

    def train(ignoring, rows):
        model, data = Model(), [{"rows": row} for part in rows.chunk(3) * STEPS for row in part]
        arguments = TrainingArguments(
            str(tmp_path), bf16=half, use_cpu=True, per_device_train_batch_size=len(rows) // 3, num_train_epochs=1,
            gradient_accumulation_steps=3, optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", report_to=[],
            save_strategy="no", logging_strategy="no", train_sampling_strategy="sequential", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.accelerator.backward = ignoring.backward
        if ignoring is torch.autograd:
            del trainer.accelerator.backward
        trainer.train()
        return [parameter.detach() for parameter in model.parameters()]

    compare(train, rtol=1e-2 if half else 1e-5, atol=1e-3 if half else 1e-6)
