"""In the places where backward runs: dtypes, layouts, hooks, checkpoints, optimizers, threads, foreign functions."""

import copy
import io
import math
import pickle
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring
from zero_or_nan.ignoring.engine import passes
from zero_or_nan.ignoring.engine.masked_pass import Pass
from zero_or_nan.ignoring.engine.plan import Policy

nan, inf = math.nan, math.inf
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def told():
    """The warnings of a test, in place of errors."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record


def contaminated(*shape, **options):
    """A leaf whose odd elements overflow in `safe`."""
    values = torch.ones(shape, **options)
    values.view(-1)[1::2] = 1e4 if values.dtype is not torch.float64 else 1e6
    return values.requires_grad_()


def safe(x):
    return torch.where(x.abs() < 50, x.exp(), 0.0)


def right(x, factor=1.0):
    """Whether `.grad` is factor * e at the even elements and 0 at the odd ones."""
    expected = torch.where(x.detach().abs() < 50, x.detach().exp() * factor, 0.0)
    return type(x.grad) is Tensor and x.grad.dtype is x.dtype and torch.equal(x.grad, expected.to(x.dtype))


# Dtypes, shapes and layouts.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)
def test_every_dtype(dtype, device):
    x = contaminated(4, dtype=dtype, device=device)
    ignoring.backward(safe(x).sum().real if dtype.is_complex else safe(x).sum())
    assert x.grad.dtype is dtype and x.grad.isfinite().all() and x.grad[1] == 0
    assert x.grad[0].item() == pytest.approx(math.e, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parts_that_are_not_selected(dtype):
    x = torch.tensor([1 + 1j, 0j], dtype=dtype, requires_grad=True)
    y = torch.where(x != 0, 1 / x, 0.0)
    ignoring.backward(y.real.sum())
    z = torch.tensor([1 + 1j], dtype=dtype, requires_grad=True)
    (1 / z).real.sum().backward()
    assert x.grad[0] == z.grad[0] and x.grad[1] == 0


WRITTEN = {
    "view_as_real": lambda y: torch.view_as_real(y)[0],
    "view_as_real, transposed": lambda y: torch.view_as_real(y).t()[:, 0],
    "view_as_complex": lambda y: torch.view_as_complex(torch.view_as_real(y))[0],
    "both parts of a conjugate": lambda y: torch.view_as_real(y.conj().conj())[0],
    "conj": lambda y: y.conj()[0],
    "adjoint": lambda y: y[None].mH[0],
    "negative": lambda y: torch._neg_view(y)[0],
    "strided": lambda y: y.as_strided((1,), (1,)),
    "diagonal": lambda y: y[None].diagonal(),
}


@pytest.mark.parametrize("overwritten", [0.0, 1.0])
@pytest.mark.parametrize("view", WRITTEN)
def test_what_is_overwritten_through_a_view_is_ignored(view, overwritten):
    """Also where it is finite, and the gradient of something else is not."""
    x = torch.tensor([overwritten, 4.0, 0.0], dtype=torch.float64, requires_grad=True)
    y = torch.complex(x.sqrt(), x)
    WRITTEN[view](y).fill_(3.0)
    ignoring.backward(torch.view_as_real(y[:2]).square().sum())
    assert x.grad.tolist() == [0.0, 9.0, 0.0]


def test_a_part_that_is_not_overwritten_counts():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    y = torch.complex(x.sqrt(), x.sqrt())
    y.imag[0] = 3.0
    ignoring.backward(y.abs().sum())
    assert x.grad[0].isnan() and x.grad[1].isfinite()


@pytest.mark.parametrize("change", [torch.float16, torch.bfloat16, torch.float64])
def test_a_conversion_hands_the_knowledge_on(change):
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    ignoring.backward(torch.where(x < 50, x.exp().to(change), 0.0).sum())
    assert x.grad.tolist() == pytest.approx([math.e, 0.0])


FORMS = {
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[:, ::2],
    "flipped": lambda x: x.flip(1),
    "permuted": lambda x: x.reshape(2, 2, 1).permute(2, 1, 0),
    "expanded": lambda x: x[:, :1].expand(2, 5),
    "expanded, a new dimension": lambda x: x.expand(3, 2, 2),
    "channels last": lambda x: x.reshape(1, 2, 2, 1).contiguous(memory_format=torch.channels_last),
    "0-dim": lambda x: x[0, 0],
    "0-dim, contaminated": lambda x: x[0, 1],
    "empty": lambda x: x[:0],
    "one row": lambda x: x[:1],
    "diagonal": lambda x: x.diagonal(),
    "unfolded": lambda x: x.reshape(-1).unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "swapped": lambda x: x.swapaxes(0, 1).reshape(4),
    "split": lambda x: torch.cat(x.split([1, 1], 1), 0),
    "unbind": lambda x: x.unbind(1)[0] + x.unbind(1)[1],
    "stacked": lambda x: torch.stack([x, x.t()]),
    "chunks": lambda x: x.chunk(2)[1],
    "max(dim)": lambda x: x.max(1).values,
    "max(dim), both outputs": lambda x: x.gather(1, x.max(1, keepdim=True).indices) + x.max(1, keepdim=True).values,
    "topk": lambda x: x.topk(1).values,
    "sort": lambda x: x.sort(1, descending=True).values[:, 0],
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_every_layout(form, device):
    grads = []
    for auto, shield in ((torch.autograd, lambda y: torch.where(y < 50, torch.where(y < 50, y, 0).exp(), 0.0)),
                         (ignoring, safe)):  # fmt: skip
        x = contaminated(2, 2, device=device)
        y = FORMS[form](x * 1)
        auto.backward(shield(y).sum())
        grads.append(x.grad)
    assert type(grads[1]) is Tensor and torch.equal(*grads) and grads[0].stride() == grads[1].stride()


# Hooks of tensors.


def test_a_tensor_hook_is_called_once_with_a_usable_tensor():
    x = contaminated(2)
    y = x * 1
    seen = []
    y.register_hook(seen.append)
    ignoring.backward(safe(y).sum())
    (kept,) = seen
    assert isinstance(kept, Tensor) and kept.shape == (2,) and kept.dtype is torch.float32
    assert kept.tolist() == [pytest.approx(math.e), 0.0] and kept.numpy().shape == (2,) and kept[0].item() > 2
    assert not kept.isnan().any() and kept.norm().item() == pytest.approx(math.e) and str(kept).startswith("tensor(")
    assert type(kept * 2) is type(kept.clone()) is Tensor and np.asarray(kept).sum() == pytest.approx(math.e)


LOOKS = {
    "print": str, "repr": repr, "format": "{}".format, "numpy": lambda g: g.numpy(), "tolist": lambda g: g.tolist(),
    "item": lambda g: g[0].item(), "float": lambda g: float(g[0]), "bool": lambda g: bool(g[0] > 0), "len": len,
    "norm": lambda g: g.norm(), "isnan": lambda g: g.isnan().any().item(), "isfinite": lambda g: g.isfinite().all(),
    "max": lambda g: g.max(), "mean": lambda g: g.mean().item(), "std": lambda g: g.std(),
    "abs": lambda g: g.abs().sum(),
    "allclose": lambda g: torch.allclose(g, g), "equal": lambda g: torch.equal(g, g), "iter": list,
    "compare": lambda g: (g == 0).sum().item(),
    "clone": lambda g: g.clone(), "detach": lambda g: g.detach().cpu().double(), "asarray": np.asarray,
    "data": lambda g: g.data.sum(), "deepcopy": copy.deepcopy, "sizes": lambda g: (g.shape, g.stride(), g.numel()),
    "is_contiguous": lambda g: g.is_contiguous(), "argmax": lambda g: g.argmax(),
    "index": lambda g: g[g > 0], "nonzero": lambda g: g.nonzero(), "vector_norm": torch.linalg.vector_norm,
    "count": lambda g: torch.count_nonzero(g), "save": lambda g: torch.save(g, io.BytesIO()), "pickle": pickle.dumps,
    "new": lambda g: (g.new_zeros(2), g.new_ones(2), torch.zeros_like(g), torch.rand_like(g)), "hash": hash,
    "data_ptr": lambda g: g.data_ptr(), "type": lambda g: g.type(), "element_size": lambda g: g.element_size(),
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_a_hook_may_look_at_the_gradient(look):
    x = contaminated(2)
    y = x * 1

    def hook(gradient):
        LOOKS[look](gradient)

    y.register_hook(hook)
    x.register_hook(hook)
    ignoring.backward(safe(y).sum())
    assert right(x)


@pytest.mark.parametrize("change, factor", [
    (lambda g: g * 2, 2), (lambda g: g + g, 2), (lambda g: g.clone().mul_(2), 2),
    (lambda g: g.mul(2).clamp(-3, 3), None),
    (lambda g: torch.where(g > 1, g * 2, g), 2), (lambda g: g / g.norm(), 1 / math.e), (lambda g: g.neg(), -1),
    (lambda g: g.mul_(2), 2), (lambda g: g + torch.ones_like(g) * (g > 0) * 0, 1),
    (lambda g: torch.tensor((g.numpy() * 2).tolist()), 2), (lambda g: None, 1),
    (lambda g: torch.tensor(g.tolist()), 1), (lambda g: g.detach().clone(), 1), (lambda g: g.nan_to_num(), 1),
])  # fmt: skip
def test_a_hook_may_change_the_gradient(change, factor):
    x = contaminated(2)
    y = x * 1
    y.register_hook(change)
    ignoring.backward(safe(y).sum())
    expected = [3.0, 0.0] if factor is None else [math.e * factor, 0.0]
    assert type(x.grad) is Tensor and x.grad.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("change, factor", [
    (lambda g: g * 2, 2), (lambda g: g + g, 2), (lambda g: g.mul_(2), 2), (lambda g: -g, -1), (lambda g: g.abs(), 1),
    (lambda g: g.clone(memory_format=torch.contiguous_format), 1), (lambda g: g.reshape(2, 1).t().contiguous()[0], 1),
    (lambda g: g.clamp(-1, 1), 1), (lambda g: torch.where(g > 0, g, -g), 1), (lambda g: g.double().float(), 1),
    (lambda g: g.nan_to_num(), 1), (lambda g: g / g.norm(), 1), (lambda g: g.detach().clone(), 1),
])  # fmt: skip
def test_what_is_ignored_stays_so_through_a_hook(change, factor):
    x = contaminated(2)
    y = x.exp()
    y.register_hook(change)
    ignoring.backward(torch.where(x < 50, y, 0.0).sum())
    assert right(x, factor)


@pytest.mark.parametrize("change", [lambda g: g * 2, lambda g: torch.tensor((g.numpy() * 2).tolist())])
def test_selections_ahead_of_a_hook_are_ignored_too(change):
    x = contaminated(2)
    y = safe(x)
    y.register_hook(change)
    ignoring.backward(y.sum())
    assert right(x, 2)


def test_what_a_hook_writes_into_the_gradient_counts():
    x = contaminated(2)
    y = x * 1

    def hook(gradient):
        gradient[1] = 5.0

    y.register_hook(hook)
    ignoring.backward(safe(y).sum())
    assert x.grad.tolist() == [pytest.approx(math.e), 5.0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pass_in_a_mode_without_gradients(mode):
    """Inference tensors have no version that shows what a hook wrote into them: that counts all the same."""
    x = torch.tensor([1.0, 2.0, 100.0], requires_grad=True)
    y = x.exp()
    y.register_hook(lambda g: (g[1:2].fill_(2.0), None)[1])
    loss = torch.where(torch.tensor([True, False, False]), y, 0.0).sum()
    with mode():
        (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
        (masked,) = ignoring.grad(loss, x, retain_graph=True, ignored="masked")
        (ours,) = ignoring.grad(loss, x)
    assert ours.equal(plain.nan_to_num(0)) and plain[2].isnan() and ours.is_inference() == plain.is_inference()
    assert masked.get_mask().tolist() == [True, True, False]


def test_hooks_are_called_in_pytorchs_order():
    orders = []
    for auto in (torch.autograd, ignoring):
        order = []
        x = contaminated(2)
        y = x * 1
        z = y.exp()
        y.retain_grad()
        for name, tensor in (("x", x), ("y1", y), ("z", z), ("y2", y)):
            tensor.register_hook(lambda g, name=name, order=order: order.append(name))
        x.register_post_accumulate_grad_hook(lambda p, order=order: order.append("accumulated"))
        y.grad_fn.register_prehook(lambda g, order=order: order.append("pre"))
        y.grad_fn.register_hook(lambda a, b, order=order: order.append("post"))
        auto.backward(torch.where(y < 50, z, 0.0).sum())
        orders.append(order)
    assert orders[0] == orders[1] and len(orders[1]) == len(set(orders[1])) == 7


def test_a_hook_of_a_leaf_may_change_its_gradient():
    x = contaminated(2)
    x.register_hook(lambda g: g * 3)
    ignoring.backward(safe(x).sum())
    assert right(x, 3)


def test_a_post_accumulate_hook_sees_the_plain_gradient_once():
    x = contaminated(2)
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append((type(p.grad), p.grad.tolist())))
    ignoring.backward(safe(x).sum())
    assert seen == [(Tensor, [pytest.approx(math.e), 0.0])]


def test_an_optimizer_that_steps_in_a_post_accumulate_hook():
    x = contaminated(2)
    optimizer = torch.optim.SGD([x], lr=1.0)

    def step(p):
        optimizer.step()
        optimizer.zero_grad()

    x.register_post_accumulate_grad_hook(step)
    ignoring.backward(safe(x).sum())
    assert x.grad is None and x.tolist() == [pytest.approx(1 - math.e), 1e4]


@pytest.mark.parametrize("form", [lambda y: y, lambda y: y.t(), lambda y: y.expand(2, 2, 2), lambda y: y[:, :1]])
def test_a_retained_gradient_is_plain_and_not_doubled(form):
    kept = []
    for auto in (torch.autograd, ignoring):
        x = torch.full((2, 2), 100.0, requires_grad=True)
        y = form(x * 1)
        y.retain_grad()
        auto.backward((torch.where(y < 50, y.exp(), 0.0) + 2 * y).sum(), retain_graph=True)
        first = y.grad
        auto.backward((2 * y).sum())
        kept += [first, y.grad]
    assert [type(k) for k in kept] == [Tensor] * 4
    assert (kept[2] == 2).all() and kept[2].stride() == kept[0].stride()
    assert kept[1].isnan().all() and (kept[3] == 4).all()


def test_what_a_hook_kept_is_copied_and_pickled_as_a_plain_tensor():
    x = contaminated(2)
    kept = []
    x.register_hook(kept.append)
    ignoring.backward(safe(x).sum())
    for copied in (copy.deepcopy(kept[0]), pickle.loads(pickle.dumps(kept[0])), kept[0].detach(), kept[0] * 1):
        assert type(copied) is Tensor and copied.tolist() == [pytest.approx(math.e), 0.0]


def test_a_multi_grad_hook():
    x, y = contaminated(2), contaminated(2)
    seen = []
    handle = torch.autograd.graph.register_multi_grad_hook([x, y], lambda gs: seen.append([g.tolist() for g in gs]))
    ignoring.backward((safe(x) + safe(y)).sum())
    handle.remove()
    assert seen == [[[pytest.approx(math.e), 0.0]] * 2]


# Hooks of modules.


class Shield(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 100.0]))

    def forward(self, x):
        return torch.where(self.weight < 50, (self.weight * x).exp(), 0.0)


def test_full_backward_hooks_of_modules():
    seen = []
    for auto in (torch.autograd, ignoring):
        net = nn.Sequential(nn.Identity(), Shield(), nn.Identity())
        for i, module in enumerate(net):
            module.register_full_backward_hook(lambda m, a, b, i=i: seen.append((i, b[0].shape)))
            module.register_full_backward_pre_hook(lambda m, b, i=i: seen.append((i, "pre", b[0].shape)))
            module.register_forward_hook(lambda m, a, b, i=i: seen.append((i, "forward")))
        x = torch.ones(2, requires_grad=True)
        auto.backward(net(x).sum())
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert (
        net[1].weight.grad.tolist() == pytest.approx([math.e, 0.0]) and x.grad.tolist() == net[1].weight.grad.tolist()
    )


@pytest.mark.parametrize("change", [lambda g: g * 2, lambda g: torch.tensor(g.tolist()) * 2])
def test_a_full_backward_hook_may_change_the_gradient(change):
    net = Shield()
    net.register_full_backward_hook(lambda module, to_inputs, to_outputs: (change(to_inputs[0]),))
    x = contaminated(2)
    ignoring.backward(net(safe(x).sqrt()).sum() * 0 + net(torch.where(x < 50, x, 1.0)).sum())
    assert x.grad.isfinite().all() and x.grad[0] == pytest.approx(2 * math.e)


# Checkpoints.


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("form", [
    lambda x, run: torch.where(x < 50, run(torch.exp, x), 0.0),
    lambda x, run: torch.where(x < 50, run(lambda y: y * 2, x.exp()) / 2, 0.0),
    lambda x, run: run(lambda y: torch.where(y < 50, y, 0.0), x.exp()),
    lambda x, run: run(lambda y: run(lambda z: torch.where(z < 50, z, 0.0), y.exp() * 1), x * 1),
    lambda x, run: run(lambda y, n, z: torch.where(z < n, y, 0.0), x.exp(), 50, x * 1),
    lambda x, run: run(lambda y: (y * 1, torch.where(y < 50, y, 0.0)), x.exp())[1],
])  # fmt: skip
def test_a_checkpoint_is_fixed_and_recomputed_as_often_as_in_plain(form, reentrant):
    counts = []
    for auto in (torch.autograd, ignoring):
        count = []

        def run(function, *args, count=count):
            def counted(*args):
                count.append(1)
                return function(*args)

            return checkpoint(counted, *args, use_reentrant=reentrant)

        x = torch.tensor([1.0, 100.0], requires_grad=True)
        auto.backward(form(x, run).sum())
        counts.append(len(count))
    assert counts[0] == counts[1] and x.grad.tolist() == pytest.approx([math.e, 0.0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_parameters_inside_a_checkpoint(reentrant):
    net = Shield()
    x = contaminated(2)
    ignoring.backward(checkpoint(lambda y: torch.where(y < 50, y, 0.0) * net(y * 0 + 1), x.exp().clamp(max=1e30),
                                 use_reentrant=reentrant).sum())  # fmt: skip
    assert type(net.weight.grad) is Tensor and net.weight.grad.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_foreign_function_inside_a_checkpoint_is_told_of(reentrant, told):
    for function, is_lost in ((Doubled, False), (Exponential, True)):
        x = torch.tensor([1.0, 100.0], requires_grad=True)
        y = checkpoint(lambda y, function=function: function.apply(y * 1), x.exp(), use_reentrant=reentrant)
        ignoring.backward(torch.where(x < 50, y, 0.0).sum())
        assert [w.category for w in told] == [UserWarning] * is_lost
        assert is_lost or right(x, 2)
    assert "Exponential" in str(told[0].message)


def test_a_checkpoint_is_left_as_it_was():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    y = checkpoint(torch.exp, x, use_reentrant=True)
    for give in (None, torch.ones(3)):
        try:
            ignoring.backward(
                torch.where(x < 50, y, 0.0), give if give is not None else torch.ones(2), retain_graph=True
            )
        except RuntimeError:
            assert give is not None
        assert y.grad_fn.run_function is torch.exp


def test_a_checkpoint_refuses_grad_in_pytorchs_words():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        ignoring.grad(checkpoint(safe, x, use_reentrant=True).sum(), x)
    ignoring.backward(checkpoint(safe, x, use_reentrant=True).sum())
    assert x.grad.tolist() == pytest.approx([math.e, 0.0])


def test_saved_tensor_hooks_are_called_as_often_as_in_plain():
    counts = []
    for auto in (torch.autograd, ignoring):
        unpacked = []

        def unpack(tensor, unpacked=unpacked):
            unpacked.append(1)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            x = contaminated(2)
            auto.backward(safe(x).sum())
        counts.append(len(unpacked))
    assert counts[0] == counts[1] and right(x)


def test_tensors_saved_on_the_cpu():
    with torch.autograd.graph.save_on_cpu():
        x = contaminated(2)
        ignoring.backward(safe(x).sum())
    assert right(x)


# Training.


def problem(rows_of_nan=3):
    """Data with bad rows, and the good rows alone."""
    generator = torch.Generator().manual_seed(0)
    rows, targets = torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)
    bad = rows.clone()
    bad[8 - rows_of_nan :] = torch.tensor([nan, inf, 3e38, -inf])
    return bad, rows[: 8 - rows_of_nan], targets


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def masked_loss(net, rows, targets):
    error = (net(rows) - targets).square()
    return torch.where(error.isfinite() & rows.isfinite().all(1, keepdim=True), error, 0.0).sum()


def loss_of(net, rows, targets):
    return (net(rows) - targets[: len(rows)]).square().sum()


def close(a, b):
    return all(torch.allclose(p, q, rtol=1e-4, atol=1e-6) for p, q in zip(a.parameters(), b.parameters(), strict=True))


OPTIMIZERS = sorted(
    name for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
)  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_as_on_the_good_rows_alone(name):
    bad, good, targets = problem()
    ours, theirs = network(), network()
    for net, step_of in ((ours, lambda: ignoring.backward(masked_loss(ours, bad, targets))),
                         (theirs, lambda: loss_of(theirs, good, targets).backward())):  # fmt: skip
        parameters = [p for p in net.parameters() if p.dim() == 2] if name == "Muon" else net.parameters()
        optimizer = getattr(torch.optim, name)(parameters, lr=0.01)

        def closure(optimizer=optimizer, net=net, step_of=step_of):
            optimizer.zero_grad()
            step_of()
            return loss_of(net, good, targets).detach()

        for _ in range(4):
            optimizer.step(closure)
    assert close(ours, theirs) and not close(ours, network())


def test_the_gradients_are_clipped_as_on_the_good_rows_alone():
    bad, good, targets = problem()
    for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        ours, theirs = network(), network()
        ignoring.backward(masked_loss(ours, bad, targets))
        loss_of(theirs, good, targets).backward()
        clip(ours.parameters(), 0.1)
        clip(theirs.parameters(), 0.1)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-7)


def test_gradients_accumulate_over_micro_batches():
    bad, good, targets = problem()
    ours, theirs = network(), network()
    for part in (slice(0, 3), slice(3, 6), slice(6, 8)):
        ignoring.backward(masked_loss(ours, bad[part], targets[part]))
    loss_of(theirs, good, targets).backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-6)


def test_autocast_and_a_gradient_scaler():
    bad, good, targets = problem()
    ours, theirs = network(), network()
    for net, rows in ((ours, bad), (theirs, good)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = masked_loss(net, rows, targets[: len(rows)])
            ignoring.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 256.0  # no step was skipped
    assert all(torch.allclose(p, q, rtol=2e-2, atol=2e-3) for p, q in zip(ours.parameters(), theirs.parameters(),
                                                                         strict=True))  # fmt: skip


def test_a_scaler_still_finds_an_overflow_that_the_loss_uses():
    x = torch.tensor([100.0], requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    ignoring.backward(scaler.scale(x.exp().sum()))
    scaler.step(optimizer)
    scaler.update()
    assert x.item() == 100.0 and scaler.get_scale() == 128.0


@pytest.mark.parametrize("careful", [True, False])
def test_sparse_gradients_of_embeddings(careful, monkeypatch):
    if careful:
        monkeypatch.setattr(passes, "is_safe", lambda *_: False)
    tables = []
    for auto in (torch.autograd, ignoring):
        torch.manual_seed(0)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            auto.backward(table(torch.tensor([0, 2, 2])).square().sum())
            assert table.weight.grad.layout is torch.sparse_coo
            optimizer.step()
        tables.append(table.weight.detach())
    assert torch.equal(*tables)


def test_a_sparse_gradient_of_a_contaminated_loss():
    table = nn.Embedding(3, 1, sparse=True)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[1.0], [100.0], [2.0]]))
    ignoring.backward(safe(table(torch.tensor([0, 1]))).sum())
    assert table.weight.grad.to_dense().tolist() == [[pytest.approx(math.e)], [0.0], [0.0]]


# Functions that are not PyTorch's.


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert type(gradient) is Tensor
        return gradient * 2


class Exponential(torch.autograd.Function):
    """In NumPy; its derivative is inf where it overflows."""

    @staticmethod
    def forward(ctx, x):
        with np.errstate(over="ignore"):
            y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(gradient.numpy() * y.numpy())


@pytest.mark.parametrize("function, is_lost", [(Doubled, False), (Exponential, True)])
def test_a_foreign_function_gets_plain_tensors_and_is_named_once_where_something_is_lost(function, is_lost, told):
    for second, warned in ((2.0, 0), (100.0, is_lost)):
        x = torch.tensor([1.0, second], requires_grad=True)
        y = function.apply(function.apply(x.exp().log()))
        ignoring.backward(torch.where(x < 1.5, y, 0.0).sum())
        assert x.grad[0] > 2 and x.grad[1].isnan() == warned
        assert [w.category for w in told] == [UserWarning] * warned
    assert "".join(str(one.message) for one in told).count(function.__name__) == is_lost


def test_a_foreign_function_contaminates_as_in_plain_pytorch(told):
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    ignoring.backward(torch.where(x < 50, Exponential.apply(x), 0.0).sum())
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()
    assert len(told) == 1 and "Exponential" in str(told[0].message)


def test_selections_ahead_of_a_foreign_function_are_fixed_again(told):
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    y = Doubled.apply(safe(x))
    ignoring.backward(y[:1].sum() + y[1:].sum())
    assert right(x, 2)


def test_a_foreign_function_that_met_nothing_ignored_is_not_told_of():
    x = contaminated(2)
    ignoring.backward(Doubled.apply(safe(x)).sum())
    assert right(x, 2)


class Smaller(torch.autograd.Function):
    """Selects, but nobody outside can know."""

    @staticmethod
    def forward(ctx, x):
        ctx.selected = x < 50
        return torch.where(ctx.selected, x, 0.0)

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(ctx.selected, gradient, 0.0)


def test_a_selection_inside_a_foreign_function_is_told_of_where_it_contaminates(told):
    x = contaminated(2)
    ignoring.backward(Smaller.apply(x.exp()).sum())
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()
    assert len(told) == 1 and "Smaller" in str(told[0].message)


@pytest.mark.skipif(not hasattr(torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result, "unpack_hook"),
                    reason="this PyTorch doesn't tell who unpacks")  # fmt: skip
def test_a_selection_inside_a_foreign_function_is_not_told_of_where_it_does_not(monkeypatch):
    x = contaminated(2)
    ignoring.backward(safe(Smaller.apply(x * 2)).sum())
    assert x.grad.tolist() == [pytest.approx(2 * math.e**2), 0.0]


def test_a_foreign_function_with_several_outputs_and_none(told):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            return x * n, x + n

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + b, None

    x = contaminated(2)
    a, b = Both.apply(x, 2)
    ignoring.backward(torch.where(x < 50, a, 0.0).sum())
    assert x.grad.tolist() == [2.0, 0.0] and not told
    x.grad = None
    ignoring.backward(torch.where(x < 50, Both.apply(x.exp(), 2)[0], 0.0).sum())
    assert right(x, 2) and not told


def derivative(backward, forward=lambda ctx, x, w: x * w.detach()):
    """A Function of x and w that nobody has recorded."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Unrecorded", (torch.autograd.Function,), members).apply


def accumulating(ctx, gradient):
    """As a fused kernel does: the gradient of w is written past PyTorch."""
    ctx.w.main_grad = gradient * ctx.w.main
    return gradient, None


def kept(ctx, x, w):
    ctx.w = w
    with torch.enable_grad():
        ctx.inner = (x.detach() * w * w.main).sum(0, keepdim=True).expand(2)
    return ctx.inner.detach()


def ran_backward(ctx, gradient):
    """As a checkpoint does: the gradient of w does not come out here."""
    torch.autograd.backward(ctx.inner, gradient)
    return gradient, torch.zeros(2)


def written(ctx, gradient):
    return gradient.mul_(torch.tensor([1.0, inf])), torch.zeros(2)


def by_numpy(ctx, gradient):
    return torch.from_numpy(gradient.numpy() * 1), gradient


# What a Function does behind a selection, what is done ahead of it, and whether that loses anything.
UNRECORDED = {
    "finite": (derivative(lambda ctx, g: (g * 2, g)), lambda x: x, False),
    "NaN that a selection drops again": (
        derivative(lambda ctx, g: (g * 1, g)),
        lambda x: (x - 1).sqrt().relu().sqrt(),
        False,
    ),
    "NaN": (derivative(lambda ctx, g: (g * torch.tensor([1.0, inf]), g)), lambda x: x, False),
    "0 times inf later": (derivative(lambda ctx, g: (g * 1, g)), lambda x: (x - 1).sqrt(), False),
    "0 times inf much later": (derivative(lambda ctx, g: (g * 1, g)), lambda x: ((x - 1).sqrt() * 2).sin() + 1, False),
    "0 times inf later, after NumPy": (derivative(by_numpy), lambda x: (x - 1).sqrt(), True),
    "written in place": (derivative(written), lambda x: x, False),
    "no gradient": (derivative(accumulating, kept), lambda x: x, True),
    "a pass of its own": (derivative(ran_backward, kept), lambda x: x, True),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", UNRECORDED)
def test_a_foreign_function_is_told_of_where_something_is_lost(name, create_graph, told):
    function, ahead, is_lost = UNRECORDED[name]
    x, w = (torch.tensor([2.0, 1.0], requires_grad=True) for _ in range(2))
    w.main = torch.tensor([1.0, inf])
    ignoring.backward(function(ahead(x), w)[:1].sum(), create_graph=create_graph)
    messages = [str(one.message) for one in told if "ignoring" in str(one.message)]
    assert len(messages) == (is_lost or create_graph)  # with a record, a later pass may lose something
    assert all("could not follow Unrecorded (" in message for message in messages)
    assert is_lost or create_graph or x.grad.isfinite().all()


def test_a_foreign_function_is_told_of_where_a_mask_is_asked_for(told):
    x = torch.tensor([2.0, 1.0], requires_grad=True)
    (found,) = ignoring.grad(Doubled.apply(x)[:1].sum(), x, ignored="masked")
    assert found.get_mask().tolist() == [True, False] and not [one for one in told if "ignoring" in str(one.message)]
    ignoring.grad(Exponential.apply(x)[:1].sum(), x, ignored="masked")
    assert "Exponential" in "".join(str(one.message) for one in told)


def test_a_foreign_function_ahead_of_a_sparse_gradient_is_told_of(told):
    table = torch.ones(3, 1, requires_grad=True)
    rows = F.embedding(torch.tensor([0, 1]), table, sparse=True)
    ignoring.backward(derivative(lambda ctx, g: (g * float((g * inf).sum()), None))(rows, torch.ones(1))[:1].sum())
    assert table.grad.to_dense()[1].isnan() and "Unrecorded" in str(told[0].message)


def test_an_error_of_a_foreign_function_is_its_own():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError("mine")

    x = contaminated(2)
    with pytest.raises(ZeroDivisionError, match="mine"):
        ignoring.backward(safe(Broken.apply(x)).sum())
    ignoring.backward(safe(x).sum())
    assert right(x)


@pytest.fixture
def by_rules(monkeypatch):
    """Every derivative is followed operator by operator."""
    monkeypatch.setattr(Pass, "policy", Policy(transfers=False))


def test_an_operator_without_a_rule_is_named_and_plain(told, by_rules, monkeypatch):
    monkeypatch.delitem(ignoring.RULES, torch.ops.aten.mul)
    x = contaminated(2)
    ignoring.backward(torch.where(x < 50, x.exp() * torch.tensor([1.0, 1.0]), 0.0).sum())
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()
    assert [w.category for w in told] == [UserWarning] and str(told[0].message).count("aten::mul") == 1


def test_an_operator_without_a_rule_is_named_before_the_harm_is_done(told, by_rules, monkeypatch):
    monkeypatch.delitem(ignoring.RULES, torch.ops.aten.neg)
    x = contaminated(2)
    ignoring.backward(torch.where(x < 50, -x.exp(), 0.0).sum())
    assert x.grad[0] == pytest.approx(-math.e) and x.grad[1].isnan()
    assert len(told) == 1 and "aten::neg" in str(told[0].message)


def test_an_operator_without_a_rule_that_met_nothing_ignored_is_not_told_of(monkeypatch):
    monkeypatch.delitem(ignoring.RULES, torch.ops.aten.mul)
    monkeypatch.setattr(passes, "is_safe", lambda *_: False)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    ignoring.backward((x * 3.0 * torch.tensor([1.0, 0.0])).sum())
    assert x.grad.tolist() == [3.0, 0.0]


def test_a_rule_that_raises_is_an_operator_without_one(told, by_rules, monkeypatch):
    def broken(op, *args, **kwargs):
        raise KeyError("a mistake")

    monkeypatch.setitem(ignoring.RULES, torch.ops.aten.mul, broken)
    monkeypatch.setattr(Pass, "raises_bugs", False)
    x = contaminated(2)
    ignoring.backward(safe(x).sum())
    assert x.grad[0] == pytest.approx(math.e) and x.grad[1].isnan()
    assert len(told) == 1 and all(part in str(told[0].message) for part in ("aten::mul", "KeyError", "report"))


def test_what_was_lost_in_one_pass_is_not_told_in_the_next(by_rules, monkeypatch):
    x = contaminated(2)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="aten::mul"):
        patch.delitem(ignoring.RULES, torch.ops.aten.mul)
        ignoring.backward(safe(x).sum())
    x.grad = None
    ignoring.backward(safe(x).sum())
    assert right(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_forward(backend, told, request):
    if backend == "inductor":
        request.getfixturevalue("marked")
    torch._dynamo.reset()
    x = contaminated(2)
    compiled = torch.compile(lambda y: torch.where(y < 50, y.exp(), 0.0) * 2, backend=backend)
    try:
        y = compiled(x)
    except Exception as error:
        pytest.skip(f"nothing to compile with here: {error}")
    ignoring.backward(torch.where(x < 50, y, 0.0).sum())
    messages = [str(w.message) for w in told if "ignoring" in str(w.message)]
    assert not messages and x.grad.tolist() == pytest.approx([2 * math.e, 0])


def test_a_selection_ahead_of_a_compiled_region_is_fixed(told):
    torch._dynamo.reset()
    compiled = torch.compile(lambda y: y * 2, backend="aot_eager")
    x = contaminated(2)
    ignoring.backward(compiled(safe(x)).sum())
    assert right(x, 2)


# Threads.


@pytest.mark.filterwarnings("error")
def test_passes_in_several_threads():
    results, wrong = {}, []

    def work(i):
        try:
            for _ in range(20):
                x = torch.tensor([1.0, 100.0], requires_grad=True)
                y = Exponential.apply(x * 1) if i == 0 else (x * 1).exp()
                ignoring.backward(torch.where(x < 50, y, 0.0).sum())
                results.setdefault(i, []).append(x.grad.tolist())
        except UserWarning as warning:
            wrong.append((i, str(warning)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [i for i, _ in wrong] == [0]  # only its derivative is in NumPy; warnings are errors here
    assert all(row == [pytest.approx(math.e), 0.0] for i in (1, 2, 3) for row in results[i])
    assert all(len(results[i]) == 20 for i in (1, 2, 3))


def test_two_passes_at_once_over_graphs_that_share_their_beginning():
    x = contaminated(2)
    shared = x * 1
    losses = [safe(shared * 1).sum() for _ in range(2)]
    results = [None, None]

    def work(i):
        for _ in range(20):
            (results[i],) = ignoring.grad(losses[i], x, retain_graph=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(type(r) is Tensor and r.tolist() == [pytest.approx(math.e), 0.0] for r in results)


def test_a_pass_inside_of_a_hook():
    x, inner = contaminated(2), contaminated(2)
    y = x * 1

    def hook(gradient):
        with torch.enable_grad():
            ignoring.backward(safe(inner).sum())

    y.register_hook(hook)
    ignoring.backward(safe(y).sum())
    assert right(x) and right(inner)


def test_modules_of_every_sort_in_one_network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(8, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2),
    ).eval()  # fmt: skip
    images = torch.randn(4, 1, 4, 4)
    bad = images.clone()
    bad[2:] = torch.tensor([nan, inf, 3e38, -inf])
    target = torch.tensor([0, 1, 0, 1])
    ours = net(bad)
    ignoring.backward(F.cross_entropy(ours, target, reduction="none")[:2].sum())
    gradients = [p.grad for p in net.parameters()]
    theirs = torch.autograd.grad(F.cross_entropy(net(images[:2]), target[:2], reduction="sum"), list(net.parameters()))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(gradients, theirs, strict=True))


# Called from code that is being compiled.


def warned_at(function):
    """The lines that warnings of ignoring name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [(one.filename, one.lineno) for one in caught if str(one.message).startswith("ignoring")], caught


@pytest.mark.parametrize("of", ["backward", "grad"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_compiled_function_may_call_it(of):
    w = torch.ones(1, requires_grad=True)

    @torch.compile(backend="eager")
    def step(x):
        loss = torch.where(x < 50, (w * x).exp(), 0.0).sum()
        return ignoring.backward(loss) or w.grad if of == "backward" else ignoring.grad(loss, [w])[0]

    gradients = []
    lines, caught = warned_at(lambda: gradients.append(step(torch.tensor([1.0, 100.0]))))
    assert gradients[0].equal(torch.tensor([1.0]).exp())
    assert [str(one.message) for one in caught if one.category is not ResourceWarning] == []


@pytest.mark.parametrize("compiler", [False, True], ids=["alone", "beside the compiler"])
def test_a_warning_names_the_users_line(compiler, monkeypatch):
    import torch._dynamo  # noqa: F401

    if not compiler:
        monkeypatch.delitem(sys.modules, "torch._dynamo")

    class Mine(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: 2 * x)
        backward = staticmethod(lambda ctx, gradient: torch.from_numpy(2 * gradient.numpy()))

    x = torch.full((2,), 100.0, requires_grad=True)
    loss = Mine.apply(x.exp())[:1].sum()
    here = sys._getframe().f_lineno + 1
    lines, _ = warned_at(lambda: ignoring.backward(loss, retain_graph=True))
    assert lines == [(__file__, here)]
    here = sys._getframe().f_lineno + 1
    lines, _ = warned_at(lambda: ignoring.grad(loss, [x], ignored="masked"))
    assert lines == [(__file__, here)]
