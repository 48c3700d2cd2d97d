"""Which elements of an operator's inputs the loss uses, for `honesty`: the forward function alone decides this.

The loss does not use an element if no other number in its place changes a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

INPUTS = 3
"""How many inputs of a sample get a number put into them."""
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "zero": 0.0}
"""The numbers that are put into one element of an input."""
OTHERS = (math.nan, 0.37, 0.9, -2.5)
"""The numbers that replace an element to find out whether the loss uses it."""
SELECTING = frozenset(
    """
    _segment_reduce.lengths _segment_reduce.offsets amax amin aminmax argsort clamp clamp_max clamp_min copysign
    corrcoef cummax cummin fmax fmin grid_sampler_2d grid_sampler_3d index_reduce.amax index_reduce.amin kthvalue
    linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.matrix_norm linalg.norm linalg.norm.subgradients_at_zero
    linalg.vector_norm logdet logit masked.amax masked.amin masked.median masked.normalize max.binary
    max.reduction_no_dim max.reduction_with_dim maximum median min.binary min.reduction_no_dim min.reduction_with_dim
    minimum mode msort nan_to_num nanmean nanmedian nanquantile nansum nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.cosine_embedding_loss
    nn.functional.embedding_bag nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.grid_sample nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardtanh
    nn.functional.hinge_embedding_loss nn.functional.margin_ranking_loss nn.functional.max_pool1d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.multi_margin_loss
    nn.functional.multilabel_margin_loss nn.functional.normalize nn.functional.poisson_nll_loss nn.functional.prelu
    nn.functional.relu nn.functional.relu6 nn.functional.rrelu nn.functional.softshrink nn.functional.threshold
    nn.functional.triplet_margin_loss nn.functional.triplet_margin_with_distance_loss norm norm.inf quantile renorm
    scatter_reduce.amax scatter_reduce.amin sort topk
    """.split()
)
"""Operators that compare numbers to choose some elements, or rows, of their input, and leave out the others.

The loss does not use the elements that such an operator left out, although NaN in their place would change the result.
Therefore an element of these operators counts as used if a slightly larger and a slightly smaller number both change
the result. If the element is not finite, only the terms of the result that are not finite are compared. For all other
operators, an element is used if NaN in its place changes the result.
"""

FATAL = frozenset({"grid_sampler_2d", "nn.functional.grid_sample"})
"""Operators whose backward crashes in plain PyTorch if an input other than the first has NaN or inf."""

Tensors = list[Tensor] | None


@dataclass
class Form:
    """A form of calling an operator on a sample: a function of its differentiable inputs, and their initial numbers."""

    name: str
    function: Callable[[list[Tensor]], list[Tensor]]
    start: list[Tensor]
    writes_zeros: bool = False
    """Whether a hook writes zeros into some elements of the inputs' cotangents."""

    def call(self, start: list[Tensor]) -> list[Tensor]:
        """The outputs for these numbers."""
        return self.function([steep(x, torch.zeros_like(x).requires_grad_()) for x in start])

    @cached_property
    def with_derivative(self) -> list[bool]:
        """Which of the outputs have a derivative.

        The sign that is returned with a logarithm has none, but requires grad.
        """
        xs = [x.clone().requires_grad_() for x in self.start]
        outputs = self.function([x * 1 for x in xs])
        alone = [torch.autograd.grad(o, xs, torch.ones_like(o), True, allow_unused=True) for o in outputs]
        return [any(gradient is not None for gradient in gradients) for gradients in alone]


@dataclass
class Probe:
    """A form, the numbers that it is called on, and the elements of its outputs that the loss uses."""

    name: str
    form: Form
    start: list[Tensor]
    selected: list[Tensor]
    chooses: bool
    """Whether the operator compares numbers to choose elements."""

    def seen(self, start: list[Tensor]) -> Tensors:
        """The numbers that the loss uses; None if the operator refuses the input."""
        try:
            outputs = self.form.call(start)
        except Exception:
            return None
        if [o.shape for o in outputs] != [s.shape for s in self.selected]:
            return None
        return [o.detach()[s] for o, s in zip(outputs, self.selected, strict=True)]

    @cached_property
    def now(self) -> Tensors:
        return self.seen(self.start)

    @cached_property
    def before(self) -> Tensors:
        return self.seen(self.form.start)

    def uses(self, number: int, entry: int) -> bool:
        """Whether the loss uses an element of an input. The index of the element is that of the flat input."""
        here = self.start[number].reshape(-1)[entry].item()

        def with_number(value: float) -> Tensors:
            return self.seen(with_entry(self.start, number, entry, value))

        if self.chooses:
            looked_at = None if math.isfinite(here) or self.now is None else [~now.isfinite() for now in self.now]
            return all(_changed(self.now, with_number(value), looked_at) for value in near(here))
        if any(_changed(self.now, with_number(value)) for value in (*OTHERS, *near(here))):
            return True
        # Everything may be NaN because of other elements.
        return _changed(self.before, self.seen(with_entry(self.form.start, number, entry, math.nan)))

    def grows_by(self, number: int, entry: int, slope: float) -> bool:
        """Whether the loss grows with this slope when the element changes in either direction.

        If so, our finite number in place of plain PyTorch's NaN is right: ignored elements had contaminated the
        gradient. Terms that are NaN don't grow. If such a term depends on the element, the sample without the inserted
        number has to grow with this slope. If an input is infinite, the answer is always True. Next to an infinity, a
        number can be right that is the slope at no finite input: 1 / inf is 0.
        """
        if any(bool(x.isinf().any()) for x in self.start):
            return True
        undefined = self.seen(with_entry(self.form.start, number, entry, math.nan))
        if self.now is None or self.before is None or undefined is None:
            return False
        loses = not math.isfinite(self.start[number].reshape(-1)[entry].item()) or _changed(
            self.before, undefined, [~now.isfinite() for now in self.now]
        )
        start, now = (self.form.start, self.before) if loses else (self.start, self.now)
        here = start[number].reshape(-1)[entry].item()

        def is_slope(step: float) -> bool:
            after = self.seen(with_entry(start, number, entry, here + step))
            if after is None:
                return False
            terms = [(a - n).where(a.isfinite() & n.isfinite(), 0) for a, n in zip(after, now, strict=True)]
            return math.isclose(weighted(terms).item() / step, slope, rel_tol=0.1, abs_tol=0.1)

        # The long step makes round-off small. The short step avoids crossing a kink.
        return any(is_slope(step) and is_slope(-step) for step in (0.01 * (1 + abs(here)), 0.001 * (1 + abs(here))))


def steep(x: Tensor, z: Tensor) -> Tensor:
    """The numbers of x if z is 0, with an infinite derivative with respect to z."""
    return x + z.sqrt()


def near(number: float) -> tuple[float, float]:
    """A slightly larger and a slightly smaller number, within the range of float32."""
    if not math.isfinite(number):
        return (0.37, -2.5) if math.isnan(number) else (math.copysign(3e38, number), math.copysign(1e38, number))
    step = 1e-5 + 1e-4 * abs(number)
    return number + step, number - step


def with_entry(tensors: list[Tensor], number: int, entry: int, value: float) -> list[Tensor]:
    """The tensors with another number in one element."""
    changed = tensors[number].clone(memory_format=torch.contiguous_format)
    changed.view(-1)[entry] = value
    laid_out = torch.empty_like(tensors[number]).copy_(changed)
    return [laid_out if i == number else tensor for i, tensor in enumerate(tensors)]


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """True where two tensors hold the same number. All NaNs are the same number; -0.0 and 0.0 are different."""
    if a.is_complex():
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())).all(-1)
    if not a.is_floating_point():
        return a == b
    return (a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()


def _changed(before: Tensors, after: Tensors, looked_at: list[Tensor] | None = None) -> bool:
    """Whether the loss sees another number in one of the terms to look at. False if the operator refused an input."""
    if before is None or after is None:
        return False
    other = [~same_bits(b, a) for b, a in zip(before, after, strict=True)]
    if looked_at is not None:
        other = [o & look for o, look in zip(other, looked_at, strict=True)]
    return any(bool(o.any()) for o in other)


def forms(op: Any, sample: Any, number: int) -> Iterator[Form]:
    """The forms of a call: out of place, with and without a hook that writes zeros; in place; in place on a slice."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not where or any(leaves[i].layout is not torch.strided or leaves[i].is_complex() for i in where):
        return
    start = [leaves[i].detach() for i in where]

    def called(operator: Any, tensors: list[Tensor]) -> Any:
        torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for each absent GPU
        # A copy, because the operator may write to its arguments, such as running statistics.
        filled = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        return operator(first, *args, **kwargs)

    def out_of_place(tensors: list[Tensor]) -> list[Tensor]:
        return differentiable(sample.output_process_fn_grad(called(op, tensors)))

    yield Form("out of place", out_of_place, start)
    yield Form("out of place with a hook", out_of_place, start, writes_zeros=True)
    variant = op.get_inplace()
    if variant is None or where[0] != 0 or leaves[0] is not sample.input or sample.broadcasts_input:
        return
    yield Form("in place", lambda tensors: differentiable(called(variant, tensors)), start)

    dim = 0 if number % 2 == 0 else sample.input.dim()

    def on_a_slice(tensors: list[Tensor]) -> list[Tensor]:
        called(variant, [tensors[0].select(dim, 1), *tensors[1:]])
        return differentiable(tensors[0])

    yield Form("in place on a slice", on_a_slice, [torch.stack([start[0], start[0]], dim), *start[1:]])


def differentiable(result: Any) -> list[Tensor]:
    """The outputs that a loss can take."""
    return [r for r in tree_flatten(result)[0] if isinstance(r, Tensor) and r.requires_grad]


def cases(form: Form, name: str, operator: str) -> Iterator[Probe]:
    """The sample unchanged and with a number put into it, each with all outputs used and with half of them used."""
    starts = {"as it is": form.start}
    for number, tensor in enumerate(form.start[:INPUTS]):
        for what, value in NUMBERS.items():
            if tensor.numel() and (not number or operator not in FATAL or math.isfinite(value)):
                entry = tensor.numel() // 2
                starts[f"{what} in input {number}"] = with_entry(form.start, number, entry, value)
    for what, start in starts.items():
        try:
            outputs = form.call(start)
            form.with_derivative  # noqa: B018  (plain PyTorch may refuse)
        except Exception:
            continue
        if not outputs or any(output.layout is not torch.strided for output in outputs):
            continue
        generator = torch.Generator().manual_seed(0)
        everything = [torch.full(o.shape, has) for o, has in zip(outputs, form.with_derivative, strict=True)]
        half = [every & (torch.rand(every.shape, generator=generator) < 0.5) for every in everything]
        for how_much, selected in (("all", everything), ("half", half)):
            full_name = f"{name}, {form.name}, {what}, {how_much} of the outputs"
            yield Probe(full_name, form, start, selected, operator in SELECTING)


def weighted(outputs: list[Tensor], selected: Tensors = None) -> Tensor:
    """A weighted sum of the outputs, or of their selected elements, with a different weight for each element."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for number, output in enumerate(outputs):
        part = output if selected is None or bool(selected[number].all()) else output[selected[number]]
        part = part.real + 0.5 * part.imag if part.is_complex() else part
        weights = torch.rand(part.numel(), generator=generator).reshape(part.shape) + 0.5
        total = total + (part * weights).sum()
    return total
