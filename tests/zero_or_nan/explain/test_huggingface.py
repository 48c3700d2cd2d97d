"""Hugging Face's Trainer with the callback: a bad batch stops the training and is explained; nothing else changes."""

import functools
import math

import pytest
import torch
from origins import failure, grads_of, program_with, same, telling
from torch import nn

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from zero_or_nan.explain.huggingface import ExplainCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks have warnings of their own

HIDDEN = "would have hidden this loss"


@pytest.fixture(autouse=True)
def no_state_of_accelerate():
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))

    def forward(self, x, scale, labels=None):
        error = (self.body(x) - labels).square()
        return {"loss": error.mean() * scale.mean().log()}


class Length(Model):
    """Its loss is finite where its gradient is not."""

    def forward(self, x, scale, labels=None):
        return {"loss": (self.body(x) * scale).square().sum().sqrt()}


told = telling("kind", "operator", "source")
LOG = ("undefined", "log", 'return {"loss": error.mean() * scale.mean().log()}')
SQRT = ("undefined", "sqrt", 'return {"loss": (self.body(x) * scale).square().sum().sqrt()}')


def rows(bad=None):
    """Eight batches of two; the batch with this number is bad."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(4, generator=generator),
            "scale": torch.tensor([3.0 * (number // 2 != bad)]),
            "labels": torch.randn(1, generator=generator),
        }
        for number in range(16)
    ]


@pytest.fixture
def make(tmp_path):
    def make(data, *callbacks, model=None, kind=Trainer, evaluated=None, **options):
        args = {
            "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 2, "num_train_epochs": 1,
            "logging_steps": 1, "save_strategy": "no", "learning_rate": 0.01, "report_to": [], "use_cpu": True,
            "disable_tqdm": True, "train_sampling_strategy": "sequential", **options,
        }  # fmt: skip
        arguments = TrainingArguments(**args)
        data = {"train_dataset": data, "eval_dataset": evaluated}
        return kind(model or Model(), arguments, **data, callbacks=list(callbacks))

    return make


def state_of(model):
    """Parameters, buffers and gradients of a model, and the state of PyTorch's random numbers."""
    return [*(value.clone() for value in model.state_dict().values()), *grads_of(model), torch.get_rng_state()]


def stopped(trainer, **options):
    """What a training tells as it fails, which leaves nothing behind."""
    report = failure(trainer.train, **options)
    assert "training_step" not in vars(trainer)
    return report


class Own(Trainer):
    """Has a step of its own, as the trainers of TRL: it keeps the state, takes labels out of the batch, and counts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count, self.states, self.seen = 0, [], []

    def training_step(self, model, inputs, *args):
        self.states.append(state_of(model))
        self.seen.append(self.count)
        self.count += 1
        return super().training_step(model, {**inputs, "labels": inputs.pop("labels")}, *args)


@pytest.mark.parametrize(("bad", "accumulated"), [(0, 1), (4, 3)])
def test_a_bad_batch_leaves_no_trace(make, bad, accumulated):
    """Also if its gradients would only be added to those of other batches."""
    trainer = make(rows(bad), ExplainCallback(), kind=Own, gradient_accumulation_steps=accumulated)
    report = stopped(trainer)
    assert told(report) == [LOG]
    assert report.notes[0] == f"the Trainer stopped at global_step {bad // accumulated}"
    assert report.notes[0] in str(report)
    assert trainer.seen == [*range(bad + 1), bad] and trainer.count == bad
    assert all(same(state_of(trainer.model), state) for state in trainer.states[bad:])


class Counts(Trainer):
    def compute_loss(self, *args, **kwargs):
        self.model.calls = getattr(self.model, "calls", 0) + 1
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3, "bf16": True}])
def test_a_clean_training(make, options, probe, capsys):
    """Bit for bit as without the callback, and each batch is trained on once. A search of the first leaves no trace."""

    def trained(*callbacks):
        trainer = make(
            rows(), *callbacks, kind=Counts, eval_strategy="steps", eval_steps=2, evaluated=rows(1),
            per_device_eval_batch_size=2, num_train_epochs=2, logging_nan_inf_filter=False, **options,
        )  # fmt: skip
        trainer.train()
        times = ("per_second", "runtime")
        logged = [
            {key: value for key, value in each.items() if not any(time in key for time in times)}
            for each in trainer.state.log_history
        ]
        assert "training_step" not in vars(trainer)
        return state_of(trainer.model), trainer.model.calls, logged

    (plain, calls, logged), watched = trained(), trained(ExplainCallback(probe=probe))
    assert same(watched[0], plain) and watched[1] == calls and str(watched[2]) == str(logged)
    said = capsys.readouterr().out
    assert probe is ("first batch: one line can fail" in said and "if all of batch['scale'] is 0:" in said)
    evaluations = [each["eval_loss"] for each in logged if "eval_loss" in each]
    assert len(evaluations) > 1 and not any(map(math.isfinite, evaluations))  # they are not what is trained on


@pytest.mark.parametrize(
    ("model", "origin", "filters"), [(Model, LOG, True), (Model, LOG, False), (Length, SQRT, True)]
)
def test_what_the_filter_would_have_hidden(make, model, origin, filters):
    """A loss that is not finite; where only the gradient is not, the filter hides nothing."""
    plain = make(rows(2), model=model(), logging_nan_inf_filter=filters)
    plain.train()
    logged = plain.state.log_history[2]
    assert math.isfinite(float(logged["loss"])) == filters and not math.isfinite(float(logged["grad_norm"]))
    report = stopped(make(rows(2), ExplainCallback(), model=model(), logging_nan_inf_filter=filters))
    assert told(report) == [origin]
    assert (HIDDEN in str(report)) == (filters and model is Model)


def test_a_method_that_the_user_put_on_the_trainer_stays(make):
    trainer = make(rows(0), ExplainCallback())
    trainer.training_step = step = functools.partial(Trainer.training_step, trainer)
    assert told(failure(trainer.train)) == [LOG] and trainer.training_step is step


class Once(TrainerCallback):
    """Does something when the first step has ended."""

    def __init__(self, does):
        self.does = does

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.does()


def test_an_error_of_the_users(make):
    """A training that ended outside of its steps is explained from anew by the next; without the callback, by none."""

    def fails():
        raise KeyError

    def ends(trainer):
        trainer.add_callback(Once(fails))
        with pytest.raises(KeyError):
            trainer.train()
        trainer.remove_callback(Once)

    trainer = make(rows(2), ExplainCallback())
    ends(trainer)
    ends(trainer)
    assert told(stopped(trainer)) == [LOG]
    ends(trainer)
    trainer.remove_callback(ExplainCallback)
    trainer.train()
    assert "training_step" not in vars(trainer) and trainer.state.global_step == 8


def test_a_callback_without_its_trainer_is_refused(make):
    trainer = make(rows(), Once(lambda: ExplainCallback().on_train_begin(None, None, None, model=Model())))
    with pytest.raises(RuntimeError, match="no Trainer that has this callback"):
        trainer.train()


def test_the_program_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = program_with("explain.huggingface")
    assert told(failure(exec, program, {"__name__": "__main__"}))[0][:2] == ("undefined", "div")
