"""In loops of PyTorch's own parts."""

import pytest
import torch
from comparing import BAD, GOOD, STEPS, compared, is_used, loss_of, network, state, steps
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint

from zero_or_nan import ignoring


@pytest.mark.setup("A training loop", "ignoring.backward(loss)", "In place of `loss.backward()`. Nothing else changes.")
@pytest.mark.parametrize("select", [torch.where, lambda used, out, zero: out[used[:, 0]]], ids=["where", "index"])
@compared()
def test_a_training_loop(ignoring, rows, select):
    model = network()
    for _ in steps(model):
        loss = select(is_used(rows)[:, None], model(rows).square(), 0.0).sum()
        ignoring.backward(loss)
    return state(model, loss)


MIXED_PRECISION = pytest.mark.setup(
    "AMP with `GradScaler`",
    "ignoring.backward(scaler.scale(loss))",
    "The scaler still skips a step if a used element overflows, but no longer if an ignored element is NaN or inf.",
)


@MIXED_PRECISION
@compared(rtol=2e-3, atol=2e-4)
def test_mixed_precision(ignoring, rows):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, rows)
        ignoring.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
    return state(model, loss)


@pytest.mark.setup(
    "bf16, without a scaler",
    "with torch.autocast(device, torch.bfloat16):\n    loss = loss_of(model, rows)\nignoring.backward(loss)",
    "The parameters may be float32 or bfloat16.",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@compared(rtol=1e-2, atol=1e-3)
def test_bfloat16(ignoring, rows, dtype):
    device, model, rows = "cpu", network().to(dtype), rows.to(dtype)
    for _ in steps(model):
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(model, rows)
        ignoring.backward(loss)
    return state(model, loss)


@MIXED_PRECISION
def test_a_step_is_skipped_when_a_used_entry_overflows_and_only_then():
    def skips_a_step(ignoring, rows, scale):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(model, rows)
        ignoring.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        untouched = all(map(torch.equal, model.parameters(), network().parameters()))
        assert untouched == (scaler.get_scale() < scale)
        return untouched

    usual, too_large = 256.0, 2.0**40
    for auto, skipped in ((torch.autograd, True), (ignoring, False)):
        assert skips_a_step(auto, BAD, usual) is skipped and not skips_a_step(auto, GOOD, usual)
        assert skips_a_step(auto, BAD, too_large) and skips_a_step(auto, GOOD, too_large)


@pytest.mark.setup(
    "Gradient accumulation",
    "for part in rows.chunk(3):\n    ignoring.backward(loss_of(model, part))\noptimizer.step()",
    "Gradients add up in `.grad` as usual.",
)
@compared()
def test_gradient_accumulation(ignoring, rows):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in rows.chunk(3):
            ignoring.backward(loss_of(model, part))
        optimizer.step()
    return state(model, loss_of(model, rows))


@pytest.mark.setup(
    "Gradient clipping",
    "ignoring.backward(loss)\nclip_grad_norm_(params, 1.0, error_if_nonfinite=True)\nclip_grad_value_(params, 0.1)",
    "The norm skips ignored elements, so they don't raise the error that plain PyTorch raises.",
)
@compared(plain_raises="non-finite")
def test_gradient_clipping(ignoring, rows):
    model = network()
    params = list(model.parameters())
    for _ in steps(model):
        loss = loss_of(model, rows)
        ignoring.backward(loss)
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
        clip_grad_value_(params, 0.1)
    return state(model, loss)


@pytest.mark.setup(
    "Activation checkpointing",
    "out = checkpoint(block, hidden, use_reentrant=reentrant)\nignoring.backward(loss)",
    "Both values of `use_reentrant` work, and the block is computed again only as often as in plain PyTorch.",
)
@pytest.mark.parametrize("reentrant", [True, False])
@compared()
def test_activation_checkpointing(ignoring, rows, reentrant):
    model = network()
    block, runs = model[1:], []
    block.register_forward_hook(lambda *_: runs.append(1))
    for _ in steps(model):
        hidden = model[0](rows)
        out = checkpoint(block, hidden, use_reentrant=reentrant)
        loss = torch.where(is_used(rows)[:, None], out.square(), 0.0).sum()
        ignoring.backward(loss)
    return [torch.tensor(len(runs)), *state(model, loss)]


@pytest.mark.setup(
    "Hooks",
    "block.register_full_backward_hook(look_at_all)\nhidden.register_hook(look)\nignoring.backward(loss)",
    "Hooks of tensors and modules get plain tensors, with 0 for an ignored element, and may change them.",
)
@compared()
def test_hooks(ignoring, rows):
    model = network()
    block, seen = model[1:], []

    def look(gradient):
        assert type(gradient) is torch.Tensor
        seen.append(gradient.norm())
        return 2 * gradient

    def look_at_all(module, inner, outer):
        return tuple(map(look, inner))

    block.register_full_backward_hook(look_at_all)
    for _ in steps(model):
        hidden = model[0](rows)
        hidden.register_hook(look)
        loss = torch.where(is_used(rows)[:, None], block(hidden).square(), 0.0).sum()
        ignoring.backward(loss)
    return [*seen, *state(model, loss)]


@pytest.mark.setup(
    "An optimizer in backward",
    "parameter.register_post_accumulate_grad_hook(step)\nignoring.backward(loss)",
    "The hook finds a plain `.grad`, and is called once for each parameter.",
)
@compared()
def test_an_optimizer_in_backward(ignoring, rows):
    model = network()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    seen = []

    def step(parameter):
        seen.append(parameter.grad)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss = loss_of(model, rows)
        ignoring.backward(loss)
    assert len(seen) == STEPS * len(optimizers)
    return [*seen, *state(model, loss)]


def losses_of(model, rows):
    """Two that share a graph."""
    out = model(rows)
    return torch.where(is_used(rows)[:, None], out.square(), 0.0).sum(), out[is_used(rows)].abs().sum()


@pytest.mark.setup(
    "Several losses, one after the other",
    "ignoring.backward(first, retain_graph=True)\nignoring.backward(second)",
    "",
)
@compared()
def test_several_losses_one_after_the_other(ignoring, rows):
    model = network()
    for _ in steps(model):
        first, second = losses_of(model, rows)
        ignoring.backward(first, retain_graph=True)
        ignoring.backward(second)
    return state(model, first + second)


@pytest.mark.setup("Several losses at once", "ignoring.backward([first, second])", "")
@compared()
def test_several_losses_at_once(ignoring, rows):
    model = network()
    for _ in steps(model):
        first, second = losses_of(model, rows)
        ignoring.backward([first, second])
    return state(model, first + second)


@pytest.mark.setup(
    "`torch.autograd.grad`",
    "gradients = ignoring.grad(loss, params)",
    "Takes the arguments of `torch.autograd.grad`.",
)
@compared()
def test_gradients_that_are_returned(ignoring, rows):
    model = network()
    params = list(model.parameters())
    for _ in range(STEPS):
        loss = loss_of(model, rows)
        gradients = ignoring.grad(loss, params)
        with torch.no_grad():
            for parameter, gradient in zip(params, gradients, strict=True):
                parameter -= 0.1 * gradient
    return [*gradients, *state(model, loss)]


@pytest.mark.setup(
    "A gradient penalty, `create_graph=True`",
    "(slope,) = ignoring.grad(loss, [points], create_graph=True)",
    "Compute the gradient of the penalty with `ignoring` too.",
)
@compared()
def test_a_gradient_penalty(ignoring, rows):
    model = network()
    for _ in steps(model):
        points = rows.clone().requires_grad_()
        loss = loss_of(model, points)
        (slope,) = ignoring.grad(loss, [points], create_graph=True)
        ignoring.backward(loss + slope.square().sum())
    return state(model, loss)


@pytest.mark.setup(
    "A closure, as L-BFGS needs it",
    "def closure():\n    optimizer.zero_grad()\n    loss = loss_of(model, rows)\n"
    "    ignoring.backward(loss)\n    return loss",
    "",
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")  # 2.8's L-BFGS does
@compared(rtol=1e-4)
def test_a_closure(ignoring, rows):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, rows)
        ignoring.backward(loss)
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
    return state(model, loss)


@pytest.mark.setup(
    "Fused and foreach optimizers",
    "ignoring.backward(loss)\noptimizer.step()",
    "They work like every optimizer of PyTorch, because `.grad` is a plain tensor.",
)
@pytest.mark.parametrize("kind", ["fused", "foreach"])
@compared()
def test_fused_and_foreach_optimizers(ignoring, rows, kind):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **{kind: True})
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, rows)
        ignoring.backward(loss)
        optimizer.step()
    return state(model, loss)
