"""A step that fails is run again, watched; all that it changed is what it was before it."""

import copy
import functools
import random
from collections import UserDict
from math import inf, nan

import numpy as np
import pytest
import torch
from origins import failure, grads_of, same, telling
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError
from zero_or_nan.explain.program.pasted import Pasted

told = telling("operator")


class Training:
    """A small training, with everything that a step may change; `fails_at` says in which step log 0 is taken."""

    def __init__(self, fails_at, make=torch.optim.Adam, accumulate=1):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.optimizer = make(self.model.parameters(), lr=0.01)
        self.fails_at, self.accumulate, self.number, self.called = fails_at, accumulate, 0, 0
        self.watched = explain.on_failure(self.step, model=self.model)

    def step(self, x):
        self.called += 1
        x = x + 0.01 * torch.randn_like(x) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        y = self.model(x).sigmoid()
        loss = (y * float(self.number != self.fails_at)).log().mean().neg()
        loss.backward()
        if (self.number + 1) % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def run(self, steps, watched=True):
        losses = []
        for _ in range(steps):
            losses.append((self.watched if watched else self.step)(torch.randn(5, 3)))
            self.number += 1
        return losses

    def state(self):
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()["state"]),
            "grads": grads_of(self.model),
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
        }


RETURNED = {
    "tensor": lambda loss: loss,
    "float": lambda loss: loss.item(),
    "tuple": lambda loss: (1, loss),
    "dict": lambda loss: {"loss": loss, "epoch": 3},
    "nested": lambda loss: {"losses": [loss], "other": (None, "text")},
}


@pytest.mark.parametrize("form", RETURNED)
def test_a_result_that_is_not_finite_is_a_failure_in_whatever_a_method_returns_it(form):
    class Trainer:
        @explain.on_failure
        def step(self, x, *, scale=1.0):
            """One step."""
            return RETURNED[form]((x * scale).sum())

    assert Trainer.step.__name__ == "step" and Trainer.step.__doc__ == "One step."
    assert Trainer().step(torch.ones(2), scale=2.0) == RETURNED[form](torch.tensor(4.0))
    failure(Trainer().step, torch.tensor([1.0, nan]))
    failure(Trainer().step, torch.ones(2), scale=inf)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_skips_a_step(fused):
    """A gradient that overflowed by the scale is the scaler's business; it lowers the scale and goes on."""
    w = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)

    @explain.on_failure
    def step():
        optimizer.zero_grad()
        loss = (w.half().float() - 3.0).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for _ in range(12):
        step()
    assert scaler.get_scale() < 2.0**18 and torch.isfinite(w).all()


def test_a_step_that_takes_its_batch_from_an_iterator():
    """The second run gets another batch, or none. That the first run failed is not lost, and `.grad` is what it was."""
    w, numbers = torch.ones(1, requires_grad=True), iter([1.0, nan, 1.0, 0.0])

    @explain.on_failure
    def step():
        loss = (w * next(numbers)).log().sum()
        loss.backward()
        return loss.detach()

    step()
    grad, value, state = w.grad, w.grad.clone(), torch.get_rng_state()
    for error, said in ((type(None), "does not repeat itself"), (StopIteration, "it raised StopIteration")):
        with pytest.raises(NotFiniteError, match=said) as caught:
            step()
        assert w.grad is grad and torch.equal(grad, value) and torch.equal(state, torch.get_rng_state())
        assert type(caught.value.__cause__) is error and "pass the batch to the step" in str(caught.value)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("run", [1, 2])
def test_an_error_of_the_step_goes_through(error, run):
    """In the first run; in the second, a failure is told of, unless the user interrupts. Everything is put back."""
    w, calls = torch.zeros(1, requires_grad=True), []

    @explain.on_failure
    def step():
        calls.append(1)
        loss = w.log().sum()
        loss.backward()
        if len(calls) == run:
            raise error
        return loss.detach()

    engine, state = torch.autograd._engine_run_backward, torch.get_rng_state()
    is_told = run == 2 and error is not KeyboardInterrupt
    with pytest.raises(NotFiniteError if is_told else error) as caught:
        step()
    assert len(calls) == run and torch.autograd._engine_run_backward is engine
    if run == 2:
        assert w.grad is None and torch.equal(state, torch.get_rng_state())
    if is_told:
        assert f"it raised {error.__name__}" in str(caught.value) and told(caught.value.report) == ["log"]


def test_what_has_not_run_when_it_returns_is_refused():
    async def coroutine():
        """Runs when it is awaited."""

    def generator():
        yield

    async def both():
        yield

    for late in (coroutine, generator, both):
        for decorate in (explain.on_failure, explain.on_failure(model=nn.Linear(1, 1))):
            with pytest.raises(TypeError, match=f"on_failure can't watch .*{late.__name__}"):
                decorate(late)


def compiled(step):
    return torch.compile(step, backend="aot_eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:`torch.jit")  # of Dynamo, as it traces the step
@pytest.mark.parametrize("decorators", [(compiled, explain.on_failure), (compiled, explain.on_failure, compiled)])
def test_compiled_within_and_without(decorators, capfd):
    """Dynamo does not look into the watch: it can't trace the watch, and would say so."""
    w = torch.ones(1, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], 0.0), torch.amp.GradScaler("cpu", enabled=False)

    def step(x):
        loss = scaler.scale((w * x).log().sum())
        loss.backward()
        optimizer.step()
        return loss.detach()

    for decorate in decorators:
        step = decorate(step)
    assert step(torch.tensor([1.0])) == 0
    assert "log(0) = -inf" in str(failure(step, torch.tensor([0.0])))
    assert "zero_or_nan/explain" not in capfd.readouterr().err


@pytest.mark.parametrize("fails_at", [0, 2])
def test_several_optimizers(fails_at):
    """The first has taken its step before the second fails. From the second step on, this is taken back.

    So is the state that Adam makes in this step, for a parameter that has a gradient for the first time.
    """
    torch.manual_seed(0)
    parts = [nn.Linear(2, 1), nn.Linear(2, 2)]
    late = nn.Parameter(torch.ones(1))
    optimizers = [torch.optim.Adam([*part.parameters(), late], lr=0.01) for part in parts]

    @explain.on_failure
    def step(fails):
        x = torch.randn(3, 2)
        for at, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            score = parts[0](parts[1](x)).sigmoid()
            (score * float(not (fails and at == 1)) * (late if fails else 1)).log().mean().backward()
            optimizer.step()

    def state():
        return [[each.state_dict() for each in parts], late.tolist(), [o.state_dict()["state"] for o in optimizers]]

    for _ in range(fails_at):
        step(False)
    before = copy.deepcopy(state())
    report = failure(step, True)
    assert told(report) == ["log"]
    if fails_at == 0:
        assert "took its step before" in str(report)
    else:
        assert same(state(), before) and not report.notes
        step(False)


class Own(torch.optim.Optimizer):
    """An optimizer as users write them, which evaluates its closure once."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        loss = torch.enable_grad()(closure)()
        self.move(-0.1)
        return loss

    def move(self, by):
        for p in self.param_groups[0]["params"]:
            average = self.state[p].setdefault("average", torch.zeros_like(p))
            p.add_(average.lerp_(p.grad, 0.5), alpha=by)


class Twice(Own):
    """Evaluates its closure where it is, and where the gradient leads."""

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        self.move(0.1)
        closure()
        self.move(-0.2)


class WithClosure(Training):
    """The optimizer gets a closure, and one evaluation of the closure fails."""

    def __init__(self, fails_at, make, evaluation=0):
        super().__init__(fails_at, make)
        self.failing = evaluation

    def step(self, x):
        self.called += 1
        self.evaluation = -1

        def closure():
            self.evaluation += 1
            bad = self.number == self.fails_at and self.evaluation == self.failing
            y = self.model(x + 0.01 * torch.randn_like(x)).sigmoid()
            loss = (y * float(not bad)).log().mean().neg()
            self.optimizer.zero_grad()
            loss.backward()
            return loss

        self.optimizer.step(**{"closure": closure}) if self.failing == 0 else self.optimizer.step(closure)

    def state(self):
        return {name: value for name, value in super().state().items() if name != "grads"}  # closures clear them


OPTIM = torch.optim
WITH_CLOSURE = [OPTIM.SGD, OPTIM.LBFGS, Own, Twice]
LATER = [(Twice, 1), (OPTIM.LBFGS, 1), (OPTIM.LBFGS, 4)]
FAILING = [
    *((Training, OPTIM.SGD, 4, 1), (Training, OPTIM.Adam, 4, 3)),
    *((WithClosure, make, at, 0) for make in WITH_CLOSURE for at in (0, 2)),
    *((WithClosure, make, at, evaluation) for make, evaluation in LATER for at in (0, 2)),
]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of LBFGS in PyTorch 2.8
@pytest.mark.parametrize(("kind", "make", "fails_at", "option"), FAILING)
def test_as_it_was_before(kind, make, fails_at, option):
    """Also what other steps accumulated, and if any evaluation of a closure fails. The next step goes on from there."""
    training = kind(fails_at, make, option)
    training.run(fails_at)
    x = torch.randn(5, 3)
    before, called = training.state(), training.called
    report = failure(training.watched, x)
    assert training.called == called + 2 and same(training.state(), before)
    assert kind is Training or training.evaluation == option
    (origin,) = report
    assert (origin.kind, origin.phase, origin.operator, origin.times) == ("undefined", "forward", "log", 1)
    assert origin.source.startswith("loss = (y * float(") and not report.notes
    training.fails_at = None
    training.watched(x)
    assert all(bool(p.isfinite().all()) for p in training.model.parameters())


@pytest.mark.parametrize(
    ("kind", "make"), [(Training, OPTIM.SGD), (Training, OPTIM.Adam), *((WithClosure, make) for make in WITH_CLOSURE)]
)
def test_all_is_well(kind, make):
    """The same bits as without it, and each step is run once."""
    watched = kind(None, make)
    losses, state, plain = watched.run(3), watched.state(), kind(None, make)
    assert same(plain.run(3, watched=False), losses)
    assert same(plain.state(), state) and watched.called == 3


def test_a_line_search_rejects_what_it_tried():
    """The first trial overflows; LBFGS tries a shorter step, and all is well."""
    losses, w = [], torch.full((2,), 2.0, requires_grad=True)
    optimizer = OPTIM.LBFGS([w], lr=100, max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = w.square().exp().sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    explain.on_failure(lambda: optimizer.step(closure).detach())()
    assert inf in losses and w.isfinite().all()


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_closure_that_is_an_object_keeps_its_attributes_and_may_be_left_alone(evaluates):
    class Odd(Own):
        def step(self, closure, model):
            assert closure.keywords == {"rate": 0.5} and isinstance(model, nn.Linear)
            if evaluates:
                closure()

    w = torch.ones(2, requires_grad=True)

    @explain.on_failure
    def step(x):
        (w * x).sqrt().sum().backward()
        Odd([w], lr=1).step(functools.partial(dict, rate=0.5), model=nn.Linear(1, 1))

    assert told(failure(step, torch.tensor([0.0, 1.0]))) == ["sqrt"]


BATCHES = {  # what is passed to a step, and the batch in it
    "dict": lambda batch: (batch, batch),
    "UserDict": lambda batch: (UserDict(batch),) * 2,
    "in a tuple": lambda batch: ((1, batch), batch),
    "in itself": lambda batch: (batch, batch.setdefault("itself", batch)),
}


@pytest.mark.parametrize("form", BATCHES)
def test_a_step_may_pop_from_its_batch(form):
    """The second run gets the same batch, and so does who catches the error."""
    passed, inner = BATCHES[form]({"x": torch.zeros(2), "labels": torch.ones(2), "more": 1})
    before, seen = dict(inner), []

    @explain.on_failure
    def step(given, does):
        seen.append((list(inner), does(inner)))
        inner["x"].requires_grad_().sqrt().sum().backward()

    for does in (lambda batch: batch.update(more=2), lambda batch: (batch.pop("labels"), batch.update(new=3))):
        report = failure(step, passed, does=does) if form == "dict" else failure(step, given=passed, does=does)
        assert told(report) == ["sqrt"] and not report.notes
        assert list(inner) == list(before) and all(inner[name] is value for name, value in before.items())
        before["x"].grad = None
    assert [names for names, _ in seen] == [list(before)] * 6  # the third run has the remedy in it


@pytest.mark.parametrize("form", ["a step", "a closure", "two steps"])
def test_an_infinite_loss_whose_gradient_is_finite(form):
    w = nn.Parameter(torch.tensor([1.0]))
    optimizers = [torch.optim.Adam([w], lr=1e-3) for _ in range(2 if form == "two steps" else 1)]

    @explain.on_failure
    def step(x, is_returned=True):
        def evaluated():
            loss = (3 * (w + x)).square().sum()  # at 1e19, the loss is 9e38 and overflows; the gradient is 2e20
            w.grad = None
            loss.backward()
            return loss

        if form == "a closure":
            loss = optimizers[0].step(evaluated)
        else:
            loss = evaluated()
            for optimizer in optimizers:
                optimizer.step()
        return loss if is_returned else None

    step(0.0)
    before = w.detach().clone(), copy.deepcopy([optimizer.state_dict()["state"] for optimizer in optimizers])
    report = failure(step, 1e19)
    assert [origin.kind for origin in report] == ["overflow"]
    assert not any("took its step before" in note for note in report.notes)
    assert same((w.detach(), [optimizer.state_dict()["state"] for optimizer in optimizers]), before)
    assert step(1e19, is_returned=False) is None  # nothing that the step returns or leaves behind is infinite
    assert not torch.equal(w, before[0])


STEP = """import torch
from zero_or_nan import explain
w = torch.zeros(2, requires_grad=True)
optimizer, runs = torch.optim.SGD([w], 0.1), []
def f(x):
    return x.{}
@explain.on_failure
def step():
    runs.append(1)
    loss = {}
    loss.backward()
    optimizer.step()
    return loss
"""
AGAIN = {  # what is done with x, the loss, and what the step gives with the remedy in it; its gradient alone may fail
    "the remedy is enough": ("sqrt().sum()", "f(w) + w.sum() + 0.5", ": the loss is 0.5, and every gradient is finite"),
    "a decorator": (
        "exp() * g(x)\ndef g(x):\n    power = (x + 1e25) ** 2\n    return (power / (power + 1)).sum()",
        "torch.dot(f(w), torch.ones(2))",
        "was not run again with this line, which decorates a function",
    ),
    "the pass by ignoring": (
        "sqrt().where(x > 0, 0 * x).sum()",
        "f(w) + (w - 1).square().sum()",
        ": the loss is 2, and every gradient is finite",
    ),
    "another origin": ("log().sum()", "f(w) + (w - 1).sum().asin()", " origin: undefined: asin(-2), in line 10"),
    "a line in no function": ("real", "eval(module)", "was not run again with this line, which is in no function"),
    "an error": ("log().sum()", "f(w) if len(runs) < 3 else runs[9]", " raised IndexError: list index out of range"),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_step_runs_once_more_with_the_remedy_in_it(name, tmp_path):
    inner, outer, says = AGAIN[name]
    path, module = tmp_path / "train.py", tmp_path / "module.py"
    path.write_text(STEP.format(inner, outer))
    module.write_text("w.sqrt().sum()")
    names = {"module": compile(module.read_text(), str(module), "eval")}
    exec(compile(path.read_text(), str(path), "exec"), names)
    code = names["f"].__code__
    origin = failure(names["step"]).origins[0]
    assert says in origin.again and origin.again in str(origin), origin
    assert names["f"].__code__ is code and names["w"].tolist() == [0, 0] and names["w"].grad is None
    assert origin.source in path.read_text() + module.read_text()


def test_several_lines_are_replaced(tmp_path):
    path = tmp_path / "step.py"
    path.write_text("def f(x):\n    y = x**2\n    return y\nend = 1\n")
    pasted = Pasted(str(path), 2, "y = x.double() ** 2\ny = y + 1\nreturn y.float()", 3)
    assert "".join(pasted.lines).splitlines()[1:] == [
        "    y = x.double() ** 2", "    y = y + 1", "    return y.float()", "end = 1",
    ]  # fmt: skip
    assert [pasted.line_before(line) for line in (1, 2, 5)] == [1, 2, 4]
