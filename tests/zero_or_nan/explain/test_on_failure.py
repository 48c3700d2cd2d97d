"""A step that fails is run again, watched; all that it changed is what it was before it."""

import copy
import random
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError

inf, nan = float("inf"), float("nan")


class Training:
    """A small training, with everything that a step may change; `fails_at` says in which step log 0 is taken."""

    def __init__(self, fails_at, make=torch.optim.Adam, accumulate=1, scaler=None, **options):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.optimizer = make(self.model.parameters(), lr=0.01)
        self.fails_at, self.accumulate, self.scaler, self.number, self.called = fails_at, accumulate, scaler, 0, 0
        self.watched = explain.on_failure(self.step, **options)

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

    def run(self, steps):
        losses = []
        for number in range(self.number, self.number + steps):
            self.number = number
            losses.append(self.watched(torch.randn(5, 3)))
        self.number += 1
        return losses

    def state(self):
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {
            "model": model if self.with_buffers else {name: model[name] for name, _ in self.model.named_parameters()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()["state"]),
            "grads": [None if p.grad is None else p.grad.clone() for p in self.model.parameters()],
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
        }

    with_buffers = True


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_as_it_was_before(make, accumulate):
    training = Training(4, make, accumulate)
    training.watched = explain.on_failure(training.step, model=training.model)
    training.run(4)
    x = torch.randn(5, 3)
    before = training.state()
    called = training.called
    with pytest.raises(NotFiniteError) as caught:
        training.watched(x)
    assert training.called == called + 2
    assert same(training.state(), before)
    (origin,) = caught.value.report.origins
    assert (origin.kind, origin.phase, origin.operator) == ("undefined", "forward", "log")
    assert "self.number != self.fails_at" in origin.source
    training.fails_at = None
    assert torch.isfinite(training.watched(x))


def test_buffers_are_put_back_with_the_model_alone():
    training = Training(1)
    training.with_buffers = False
    training.run(1)
    before, count = training.state(), training.model[1].num_batches_tracked.item()
    training.number = 1
    x = torch.randn(5, 3)
    before["random"] = training.state()["random"]
    with pytest.raises(NotFiniteError):
        training.watched(x)
    assert same(training.state(), before)
    assert training.model[1].num_batches_tracked.item() > count


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_all_is_well(make):
    """The same bits as without it, and each step is run once."""
    watched, plain = Training(None, make), Training(None, make)
    losses = watched.run(6)
    torch.manual_seed(0)
    plain = Training(None, make)
    plain.watched = plain.step
    assert same(plain.run(6), losses)
    assert same(plain.state(), watched.state()) and watched.called == 6


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("form", ["tensor", "float", "tuple", "dict", "nested", "nothing"])
def test_what_a_step_returns(form, bad):
    """A result that is not finite is a failure, in whatever it is returned."""
    w = torch.ones(2, requires_grad=True)

    @explain.on_failure
    def step(x):
        loss = (w * x).sum()
        if form != "nothing":
            loss = loss.detach()
        else:
            loss.backward()
        value = loss.item()
        return {
            "tensor": loss, "float": value, "tuple": (1, loss), "dict": {"loss": loss, "epoch": 3},
            "nested": {"losses": [loss], "other": (None, "text")}, "nothing": None,
        }[form]  # fmt: skip

    assert step(torch.ones(2)) is not None or form == "nothing"
    w.grad = None
    with pytest.raises(NotFiniteError):
        step(torch.tensor([1.0, bad]))
    assert w.grad is None


def test_a_gradient_alone():
    """The loss is finite, and the gradient is not: no optimizer takes a step with it."""
    w = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)

    @explain.on_failure
    def step():
        loss = w.square().sum().sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with pytest.raises(NotFiniteError) as caught:
        step()
    assert w.tolist() == [0, 0] and w.grad is None
    assert [origin.operator for origin in caught.value.report] == ["sqrt"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_skips_a_step(fused):
    """A gradient that overflowed by the scale is the scaler's business; it lowers the scale and goes on."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    x = torch.randn(8, 4)

    @explain.on_failure
    def step():
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(x)
        loss = (output.float() - 3.0).square().sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for _ in range(12):
        step()
    assert scaler.get_scale() < 2.0**18 and torch.isfinite(model.weight).all()


def test_accumulation_keeps_what_was_there():
    """The gradient of the steps before is that of before, in the same tensor."""
    w = torch.ones(2, requires_grad=True)

    @explain.on_failure
    def step(x):
        loss = (w * x).log().sum()
        loss.backward()
        return loss.detach()

    step(torch.ones(2))
    grad, value = w.grad, w.grad.clone()
    with pytest.raises(NotFiniteError):
        step(torch.tensor([1.0, 0.0]))
    assert w.grad is grad and torch.equal(grad, value)


def test_generators_of_ones_own():
    """A step that draws from its own generator gets other numbers, and the report says that it did not repeat."""
    generator = torch.Generator().manual_seed(0)
    w = torch.ones(1, requires_grad=True)
    numbers = iter([nan, 1.0])

    @explain.on_failure
    def step():
        return (w * next(numbers) * torch.rand(1, generator=generator)).sum()

    with pytest.raises(NotFiniteError, match="does not repeat itself"):
        step()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_errors_of_the_step_go_through(error):
    calls = []

    @explain.on_failure
    def step():
        calls.append(1)
        torch.ones(1, requires_grad=True).sum().backward()
        raise error

    engine = torch.autograd._engine_run_backward
    with pytest.raises(error):
        step()
    assert calls == [1] and torch.autograd._engine_run_backward is engine


def test_an_error_in_the_second_run():
    """A step that raises when it runs again: what it raises goes through, and everything is put back."""
    w = torch.ones(1, requires_grad=True)
    calls = []

    @explain.on_failure
    def step():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        loss = (w * nan).sum()
        loss.backward()
        return loss.detach()

    engine, state = torch.autograd._engine_run_backward, torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        step()
    assert torch.autograd._engine_run_backward is engine
    assert w.grad is None and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("batches", "error"), [([0.0], StopIteration), ([0.0, nan], None)])
def test_a_step_that_takes_its_batch_from_an_iterator(batches, error):
    """The second run gets another batch, or none. That the first run failed must not be lost."""
    w, iterator = torch.ones(1, requires_grad=True), iter([1.0, *batches])

    @explain.on_failure
    def step():
        loss = (w * next(iterator)).log().sum()
        loss.backward()
        return loss.detach()

    step()
    grad, state = w.grad.clone(), torch.get_rng_state()
    with pytest.raises(NotFiniteError) as caught:
        step()
    assert torch.equal(w.grad, grad) and torch.equal(state, torch.get_rng_state())
    assert type(caught.value.__cause__) is (error or type(None))
    if error:
        assert "it raised StopIteration" in str(caught.value) and "pass the batch to the step" in str(caught.value)


def test_what_was_found_before_an_error_in_the_second_run():
    w, calls = torch.zeros(1, requires_grad=True), []

    @explain.on_failure
    def step():
        loss = w.log().sum()
        loss.backward()
        if calls:
            raise ValueError
        calls.append(1)
        return loss.detach()

    with pytest.raises(NotFiniteError, match="it raised ValueError") as caught:
        step()
    assert [origin.operator for origin in caught.value.report] == ["log"] and w.grad is None


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
@pytest.mark.parametrize("x", [1.0, 0.0])
@pytest.mark.parametrize("inner", [explain.on_failure, compiled])
def test_compiled_within_and_without(inner, x, capfd):
    """Dynamo does not look into the watch: it can't trace the watch, and would say so."""
    w = torch.ones(1, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([w], 0.0), torch.amp.GradScaler("cpu", enabled=False)

    @(compiled if inner is explain.on_failure else explain.on_failure)
    @inner
    def step(x):
        loss = scaler.scale((w * x).log().sum())
        loss.backward()
        optimizer.step()
        return loss.detach()

    if x:
        assert step(torch.tensor([x])) == 0
    else:
        with pytest.raises(NotFiniteError, match="log\\(0\\) = -inf"):
            step(torch.tensor([x]))
    assert "zero_or_nan/explain" not in capfd.readouterr().err


def test_steps_that_are_methods_and_their_names():
    class Trainer:
        @explain.on_failure
        def step(self, x, *, scale=1.0):
            """One step."""
            return (x * scale).sum()

    assert Trainer.step.__name__ == "step" and Trainer.step.__doc__ == "One step."
    assert Trainer().step(torch.ones(2), scale=2.0) == 4
    with pytest.raises(NotFiniteError):
        Trainer().step(torch.ones(2), scale=inf)


def test_inside_of_a_block():
    """A watched step in a block that is watched."""
    w = torch.ones(1, requires_grad=True)

    @explain.on_failure
    def step(x):
        loss = (w * x).log().sum()
        loss.backward()
        return loss.detach()

    with explain() as report:
        step(torch.ones(1))
        with pytest.raises(NotFiniteError):
            step(torch.zeros(1))
    assert {origin.operator for origin in report} == {"log"}


class Adversaries:
    """Two optimizers in one step, of which the first goes before the second fails."""

    def __init__(self, fails_at):
        torch.manual_seed(0)
        self.critic, self.maker = nn.Linear(2, 1), nn.Linear(2, 2)
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.critic, self.maker)]
        self.fails_at, self.number = fails_at, -1

    def step(self):
        x = torch.randn(3, 2)
        for at, optimizer in enumerate(self.optimizers):
            optimizer.zero_grad()
            score = self.critic(self.maker(x)).sigmoid()
            bad = at == 1 and self.number == self.fails_at
            (score * float(not bad)).log().mean().backward()
            optimizer.step()

    def state(self):
        values = [p.detach().clone() for part in (self.critic, self.maker) for p in part.parameters()]
        return values, [copy.deepcopy(optimizer.state_dict()["state"]) for optimizer in self.optimizers]


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_several_optimizers(fails_at):
    training = Adversaries(fails_at)
    step = explain.on_failure(training.step)
    for training.number in range(fails_at):
        step()
    before, training.number = training.state(), fails_at
    with pytest.raises(NotFiniteError) as caught:
        step()
    assert [origin.operator for origin in caught.value.report] == ["log"]
    if fails_at == 0:
        assert "took its step before" in str(caught.value)
    else:
        assert same(training.state(), before) and not caught.value.report.notes
        training.number += 1
        step()


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


class MovesFirst(Own):
    """Evaluates its closure once, where it has moved to."""

    @torch.no_grad()
    def step(self, closure):
        for p in self.param_groups[0]["params"]:
            p.add_(0.01)
        return super().step(closure)


class Inner(Own):
    """Leaves the step to another optimizer."""

    def __init__(self, parameters, lr):
        parameters = list(parameters)
        super().__init__(parameters, lr)
        self.inner = torch.optim.SGD(parameters, lr=lr)

    def step(self, closure):
        return self.inner.step(closure)


class WithClosure(Training):
    """The optimizer gets a closure, and one evaluation of the closure fails."""

    def __init__(self, fails_at, make, evaluation=0, **options):
        super().__init__(fails_at, make)
        self.failing, self.named = evaluation, options.get("named")
        self.watched = explain.on_failure(self.step, model=self.model)

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

        self.optimizer.step(**{"closure": closure}) if self.named else self.optimizer.step(closure)

    def state(self):
        return {name: value for name, value in super().state().items() if name != "grads"}  # closures clear them


OPTIM = torch.optim
WITH_CLOSURE = [OPTIM.SGD, OPTIM.Adam, OPTIM.Rprop, OPTIM.Adagrad, OPTIM.LBFGS, Own, Twice, MovesFirst, Inner]
LATER = [(Twice, 1), (OPTIM.LBFGS, 1), (OPTIM.LBFGS, 4)]


@pytest.mark.parametrize("fails_at", [0, 2])
@pytest.mark.parametrize("make, evaluation", [*((make, 0) for make in WITH_CLOSURE), *LATER])
def test_closures(make, fails_at, evaluation):
    """The evaluation that fails is found, and the step leaves no trace; the next goes on from there."""
    training = WithClosure(fails_at, make, evaluation, named=evaluation == 0)
    training.run(fails_at)
    training.number = fails_at
    x, called = torch.randn(5, 3), training.called
    before = training.state()
    with pytest.raises(NotFiniteError) as caught:
        training.watched(x)
    assert training.called == called + 2 and training.evaluation == evaluation
    assert same(training.state(), before)
    (origin,) = caught.value.report.origins
    assert (origin.operator, origin.times) == ("log", 1) and not caught.value.report.notes
    training.fails_at = None
    training.watched(x)
    assert all(bool(p.isfinite().all()) for p in training.model.parameters())


@pytest.mark.parametrize("make", WITH_CLOSURE)
def test_closures_that_are_well(make):
    watched, plain = WithClosure(None, make), None
    watched.run(3)
    plain = WithClosure(None, make)
    plain.watched = plain.step
    plain.run(3)
    assert same(plain.state(), watched.state()) and watched.called == 3


def test_a_line_search_rejects_what_it_tried():
    """The first trial overflows; LBFGS tries a shorter step, and all is well."""
    losses = []

    def trained(watch):
        w = torch.full((2,), 2.0, requires_grad=True)
        optimizer = OPTIM.LBFGS([w], lr=100, max_iter=5, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = w.square().exp().sum()
            loss.backward()
            losses.append(loss.item())
            return loss

        return watch(lambda: optimizer.step(closure).detach())(), w

    assert same(trained(explain.on_failure), trained(lambda step: step))
    assert inf in losses


def test_other_things_that_an_optimizer_gets():
    """An object that can be called keeps its attributes; a module is passed on; a closure may be left alone."""

    class Closure:
        rate = 0.5

        def __call__(self):
            return None

    class Odd(Own):
        def step(self, closure, model, evaluates=True):
            assert closure.rate == 0.5 and isinstance(model, nn.Linear)
            if evaluates:
                closure()
            with torch.no_grad():
                self.move(-0.1)

    for evaluates in (True, False):
        w = torch.ones(2, requires_grad=True)
        optimizer = Odd([w], lr=1)

        @explain.on_failure
        def step(x, w=w, optimizer=optimizer, evaluates=evaluates):
            (w * x).sqrt().sum().backward()
            optimizer.step(Closure(), model=nn.Linear(1, 1), evaluates=evaluates)

        step(torch.ones(2))
        kept = w.detach().clone()
        with pytest.raises(NotFiniteError) as caught:
            step(torch.tensor([0.0, 1.0]))
        assert [origin.operator for origin in caught.value.report] == ["sqrt"]
        assert torch.equal(w, kept) and not caught.value.report.notes


def test_nothing_of_the_watch_is_told_of():
    """Parameters that are NaN already are told of where the model takes them in."""
    w = torch.full((2,), nan, requires_grad=True)
    optimizer = OPTIM.SGD([w], lr=0.1)

    @explain.on_failure
    def step():
        (w * w).sum().backward()
        optimizer.step()

    for _ in range(2):
        with pytest.raises(NotFiniteError) as caught:
            step()
        assert [(origin.kind, origin.operator) for origin in caught.value.report] == [("bad input", "mul")]


def test_the_state_that_an_optimizer_made_in_the_failed_step_is_removed():
    """Adam makes the state of a parameter in the first step in which that has a gradient."""
    early, late, other = (torch.ones(1, requires_grad=True) for _ in range(3))
    adam, second = torch.optim.Adam([early, late]), torch.optim.SGD([other], lr=0.1)

    @explain.on_failure
    def step(fails):
        (early * (late if fails else 1)).sum().backward()
        adam.step()
        (other * float(not fails)).log().sum().backward()
        second.step()

    step(False)
    before = copy.deepcopy(adam.state_dict())
    with pytest.raises(NotFiniteError):
        step(True)
    assert list(adam.state) == [early] and same(adam.state_dict(), before) and late.tolist() == [1]


@pytest.mark.parametrize("form", ["dict", "UserDict", "in a tuple", "in a dict", "by name", "in itself"])
def test_a_step_may_pop_from_its_batch(form):
    """The second run gets the same batch, and so does who catches the error."""
    seen = []
    batch = {"x": torch.zeros(2), "labels": torch.ones(2), "more": 1}

    @explain.on_failure
    def step(given=None, **more):
        given = more.get("batch", given)
        inner = {"in a tuple": lambda: given[1], "in a dict": lambda: given["inner"]}.get(form, lambda: given)()
        seen.append((list(inner), inner.pop("labels")))
        inner["more"], inner["new"] = 2, 3
        x = inner["x"].requires_grad_()
        x.sqrt().sum().backward()

    passed = {"UserDict": UserDict(batch), "in a tuple": (1, batch), "in a dict": {"inner": batch}}.get(form, batch)
    if form == "in itself":
        batch["itself"] = batch
    before = dict(batch)
    with pytest.raises(NotFiniteError) as caught:
        step(batch=passed) if form == "by name" else step(passed)
    assert [origin.operator for origin in caught.value.report] == ["sqrt"] and not caught.value.report.notes
    assert [names for names, _ in seen] == [list(before)] * 2
    after = dict(passed) if form == "UserDict" else batch
    assert list(after) == list(before) and all(after[name] is value for name, value in before.items())


@pytest.mark.parametrize("form", ["a step", "a closure", "two steps"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_an_infinite_loss_whose_gradient_is_finite(make, form):
    w = nn.Parameter(torch.tensor([1.0]))
    optimizers = [make([w], lr=1e-3) for _ in range(2 if form == "two steps" else 1)]

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
    before, states = w.detach().clone(), [copy.deepcopy(optimizer.state_dict()["state"]) for optimizer in optimizers]
    with pytest.raises(NotFiniteError) as failure:
        step(1e19)
    assert [origin.kind for origin in failure.value.report] == ["overflow"]
    assert not any("took its step before" in note for note in failure.value.report.notes)
    assert torch.equal(w, before)
    assert same([optimizer.state_dict()["state"] for optimizer in optimizers], states)
    assert step(1e19, is_returned=False) is None  # nothing that the step returns or leaves behind is infinite
    assert not torch.equal(w, before)
