"""Lightning with the callback: a bad batch stops the training and is explained; nothing else changes."""

import pytest
import torch
from origins import failure, grads_of, program_with, same, telling
from torch import nn
from torch.utils.data import DataLoader

pl = pytest.importorskip("pytorch_lightning")

from zero_or_nan.explain.lightning import ExplainCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks have warnings of their own


told = telling("kind", "operator", "source")
LOG = ("undefined", "log", "loss = self(x).square().mean() * scale.log()")
SQRT = ("undefined", "sqrt", "loss = (self(x) * scale).square().sum().sqrt()")


class Module(pl.LightningModule):
    """Keeps its state before each batch, and counts how often it is called for a batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
        self.states, self.calls = {}, []

    def forward(self, x):
        return self.body(x)

    def loss_of(self, x, scale):
        loss = self(x).square().mean() * scale.log()
        return loss

    def training_step(self, batch, number):
        self.calls.append(number)
        loss = self.loss_of(batch.pop("x"), batch.pop("scale"))
        self.log("loss", loss)
        return {"loss": loss, "other": torch.tensor(torch.nan)}

    def validation_step(self, batch, number):
        return self.loss_of(**batch)

    def on_train_batch_start(self, batch, number):
        self.states[number] = self.state()

    def on_before_backward(self, loss):
        self.before_backward = grads_of(self)

    def state(self):
        return [*(value.clone() for value in self.state_dict().values()), torch.get_rng_state()]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Length(Module):
    """Its loss is finite where its gradient is not."""

    def loss_of(self, x, scale):
        loss = (self(x) * scale).square().sum().sqrt()
        return loss


class Manual(Module):
    """Two optimizers, of which the first has changed its parameters when the second fails."""

    automatic_optimization = False

    def training_step(self, batch, number):
        self.calls.append(number)
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(self(batch["x"]).square().mean())
        first.step()
        loss = super().loss_of(batch["x"], batch["scale"])
        second.zero_grad()
        self.manual_backward(loss)
        second.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.body[at].parameters(), lr=0.01) for at in (0, 3)]


def batches(bad=None, generator=0):
    generator = torch.Generator().manual_seed(generator)
    return [
        {"x": torch.randn(5, 4, generator=generator), "scale": torch.tensor(3.0 * (number != bad))}
        for number in range(8)
    ]


def loader(data):
    """Batches from which each epoch may pop."""
    return DataLoader(data, batch_size=None, collate_fn=dict)


def trainer(*callbacks, **options):
    quiet = ["enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"]
    options = {"max_epochs": 1, **dict.fromkeys(quiet, False), **options}
    return pl.Trainer(accelerator="cpu", devices=1, callbacks=list(callbacks), **options)


def is_put_back(trained):
    loop = trained.fit_loop.epoch_loop
    return "run" not in {**vars(loop.automatic_optimization), **vars(loop.manual_optimization)}


def stopped(trained, *arguments, **options):
    """What a training tells as it fails, which leaves nothing behind."""
    report = failure(trained.fit, *arguments, **options)
    assert is_put_back(trained)
    return report


BAD = [
    (Module, LOG, 0, {}),
    (Module, LOG, 4, {"accumulate_grad_batches": 3}),
    (Module, LOG, 4, {"precision": "bf16-true"}),
    (Length, SQRT, 5, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed"}),
]


@pytest.mark.parametrize(("model", "origin", "bad", "options"), BAD)
def test_a_bad_batch_leaves_no_trace(model, origin, bad, options):
    """Also if its gradients would only be added to those of other batches. `.grad` is as backward found it."""
    module, every = model(), options.get("accumulate_grad_batches", 1)
    report = stopped(trainer(ExplainCallback(), **options), module, loader(batches(bad)))
    assert told(report) == [origin] and module.calls == [*range(bad + 1), bad]
    assert report.notes == [f"Lightning stopped at global_step {bad // every}, in epoch 0, at batch {bad}"]
    assert report.notes[0] in str(report)
    assert same(module.state(), module.states[bad]) and same(grads_of(module), module.before_backward)


def test_manual_optimization():
    """What the first optimizer has changed by then is taken back."""
    module = Manual()
    report = stopped(trainer(ExplainCallback()), module, loader(batches(3)))
    assert told(report) == [LOG] and module.calls == [0, 1, 2, 3, 3]
    assert report.notes == ["Lightning stopped at global_step 6, in epoch 0, at batch 3"]
    assert same(module.state(), module.states[3])


@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize(("model", "options"), [(Module, BAD[3][3]), (Manual, {}), (Manual, BAD[2][3])])
def test_a_clean_training(model, options, probe, capsys):
    """Bit for bit as without the callback, and each batch is trained on once; a validation may be bad.

    A search of the first batch leaves no trace. Manual optimization has no loss to search.
    """
    options = {"val_check_interval": 2, "max_epochs": 2, **options}
    plain, watched, trained = model(), model(), trainer(ExplainCallback(probe=probe), **options)
    torch.manual_seed(1)
    trainer(**options).fit(plain, loader(batches()), loader(batches(1)))
    after = plain.state()
    torch.manual_seed(1)
    trained.fit(watched, loader(batches()), loader(batches(1)))
    assert same(watched.state(), after) and watched.calls == [*range(8)] * 2 and is_put_back(trained)
    said = "searched the loss of the first batch: one line can fail" in capsys.readouterr().out
    assert said is (probe and model is Module)
    assert same(grads_of(watched), grads_of(plain)) and all(torch.isfinite(value).all() for value in after)


@pytest.mark.parametrize("method", ["training_step", "on_train_batch_end"])
def test_an_error_of_the_users(method, monkeypatch):
    def fails(*args):
        raise KeyError

    trained, model = trainer(ExplainCallback()), Module()
    monkeypatch.setattr(model, method, fails)
    with pytest.raises(KeyError):
        trained.fit(model, loader(batches()))
    assert is_put_back(trained)
    assert told(stopped(trained, Module(), loader(batches(1)))) == [LOG]


def test_the_program_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = program_with("explain.lightning").replace("from lightning import pytorch", "import pytorch_lightning")
    assert told(failure(exec, program, {"__name__": "__main__"}))[0][:2] == ("undefined", "sqrt")
