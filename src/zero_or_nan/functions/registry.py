"""How a record, a transfer, a rule or a derivative is registered. Its names are checked against PyTorch."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..masks.cotangent import Cotangent, mask_of, prefer_exact, unwrap, wrap
from ..masks.mask import full
from ..masks.numbers import any_nan
from .authoring import checked, result_check
from .fills import add_formula
from .graph import NODES
from .record import FUNCTIONS, GENERATED, RULES, RULES_OF_SPARSE, TRANSFERS, Derivative, Function, Rule, Transfer

_LIBRARY = __package__.partition(".")[0]

NEWEST = (2, 15)
"""The newest release whose names were checked. On a later release, a missing name is not an error."""

MISSING: list[str] = []
"""The names that this release lacks although it is newer than `NEWEST`: PyTorch may have renamed them."""


def transfer(names: str, *, since: str = "2.6", until: str | None = None, **facts: Any) -> Callable[[Any], Any]:
    """Record how a mask goes through the derivatives of some functions; `facts` are the fields of `Transfer`.

    Raises:
        ValueError: if no function has one of these names, or if it has a transfer already.
    """

    def register(follow: Any) -> Any:
        for name in names.split():
            if name in TRANSFERS:
                raise ValueError(f"{name} has a transfer already: {TRANSFERS[name].follow.__name__}")
            if name in NODES:
                TRANSFERS[name] = Transfer(follow, **facts)
            else:
                _refuse_unless_other_release(f"no node is called {name}Backward0", since, until)
        return follow

    return register


def function(
    names: str | type[torch.autograd.Function], *, since: str = "2.6", until: str | None = None, **facts: Any
) -> Any:
    """Make a record of one or more forward functions, so that `ignoring` knows what their backward does.

    `ignoring` follows a backward with or without a record. Without a record, the backward of your
    `torch.autograd.Function` or `torch.library` operator runs on plain tensors, and `ignoring` follows the operators
    that it calls. A record is needed if the function selects, if a backward that mixes elements is differentiated
    again, or if clean data should run in plain PyTorch. With a record, the backward gets a `Cotangent` in place of each
    tensor, and each operator that it calls is handled by its rule. To make the record, the name is enough.

    Args:
        names: one of three. A name of a PyTorch function: the name of its node without "Backward0", such as "Mul" or
            "LogSoftmax". A name of a custom operator, as in `torch.ops`, such as "mylib::scale". Or a subclass of
            `torch.autograd.Function`. Separate several names by spaces.
        since: a PyTorch release that has nodes with these names. On an older release, a missing name is not an error.
        until: the last PyTorch release that has them, if a newer one has renamed them. On a release newer than that, a
            missing name is not an error.
        facts: fields of `Function`, as keyword arguments.

    Returns:
        The same `names`, so that you can use `function` as a decorator of a class.

    Raises:
        ValueError: if no function has this name, or if a PyTorch function already has a record. A record of your own
            function is replaced.
        TypeError: if a fact is not a field of `Function`, or if `names` is neither a string nor a subclass of
            `torch.autograd.Function`.

    >>> @function
    ... class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return 2 * gradient
    >>> x = torch.tensor([1.0, 0.0], requires_grad=True)
    >>> torch.where(x > 0, Double.apply(x.log()), torch.zeros(2)).sum().backward()
    >>> x.grad
    tensor([2., nan])
    >>> x.grad = None
    >>> from zero_or_nan import ignoring
    >>> ignoring.backward(torch.where(x > 0, Double.apply(x.log()), torch.zeros(2)).sum())
    >>> x.grad
    tensor([2., 0.])
    """
    record = Function(**facts)
    keys = list(_keys(names, since, until))
    taken = [key for key in keys if key in FUNCTIONS and isinstance(key, str) and not key.startswith(GENERATED)]
    if taken and release(torch.__version__) >= release(since):
        raise ValueError(f"{taken[0]} has a record already: {FUNCTIONS[taken[0]]}")
    # On an older release, the other record of a name holds.
    FUNCTIONS.update((key, record) for key in keys if key not in taken)
    for formula in record.fills:
        add_formula(formula, record.fills_if)
    return names


def _keys(names: str | type, since: str, until: str | None) -> Iterator[str | type]:
    """The keys in `FUNCTIONS` for these functions."""
    if isinstance(names, type) and issubclass(names, torch.autograd.Function):
        yield names
        return
    if not isinstance(names, str):
        raise TypeError(f"{names!r} is neither the name of a function nor a subclass of torch.autograd.Function")
    for name in names.split():
        namespace, found, operator = name.rpartition("::")
        if found:
            packet = getattr(getattr(torch.ops, namespace), operator, None)
            if packet is None:
                raise ValueError(f"there is no operator {name}; define it before its record")
            yield from (f"{GENERATED}{namespace}_{operator}_{overload}" for overload in packet.overloads())
        elif until is not None and release(torch.__version__) > release(until):
            continue  # a newer release may have another record of this name
        elif name in NODES or "." in name or name.startswith(GENERATED):  # the latter are PyTorch's own, in Python
            yield name
        else:
            _refuse_unless_other_release(f"no node is called {name}Backward0", since, until)


def derivative(names: str | type[torch.autograd.Function], **facts: Any) -> Callable[[Derivative], Derivative]:
    """Register a second derivative formula for one or more forward functions, which handles ignored elements.

    Use it for a backward that takes pointers, or that writes into the tensors that it gets. Such a backward continues
    to run on plain tensors. If ignored elements arrive, `ignoring` also calls your formula, as
    `formula(node, cotangents)`. For a `torch.autograd.Function`, `node` is its `ctx`. `cotangents` has one `Cotangent`
    for each output. Write the formula in operators that have rules, and return a tuple with a `Cotangent` or None for
    each input. If an element of the backward's own result is not finite, `ignoring` takes this element from the
    formula's result.

    Args:
        names: the same as for `function`.
        facts: fields of `Function`, as keyword arguments, and `since` and `until`.

    Raises:
        ValueError, TypeError: in the same situations as `function`.

    >>> class Scaled(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         ctx.save_for_backward(factor)
    ...         return x * factor
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return torch.from_numpy(gradient.numpy() * ctx.saved_tensors[0].numpy()), None
    >>> @derivative(Scaled)
    ... def scaled(node, cotangents):
    ...     return cotangents[0] * node.saved_tensors[0], None
    >>> from zero_or_nan import ignoring
    >>> x = torch.ones(2, requires_grad=True)
    >>> ignoring.backward(Scaled.apply(x, torch.tensor([2.0, torch.nan]))[:1].sum())
    >>> x.grad
    tensor([2., 0.])
    """

    def register(implementation: Derivative) -> Derivative:
        function(names, derivative=implementation if is_own(implementation) else checked(implementation), **facts)
        return implementation

    return register


def rule(*operators: str, since: str = "2.6", until: str | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for one or more operators. The decorated function is the rule.

    `ignoring` calls the rule as `rule(op, *args, **kwargs)` if at least one of the arguments is a `Cotangent`. `op` is
    the overload that was called. If an in-place overload was called, `op` is the out-of-place one. The rule returns the
    result of `op`, with a `Cotangent` in place of each tensor. Two things must hold for each `Cotangent`:

    - an element that does not count is 0, never NaN or infinite;
    - an element that is finite in plain PyTorch's result has the same bits as there.

    If a rule can't handle a case, it raises `NotFollowed` with a reason. If a rule raises anything else, or returns a
    wrong number of results, or a result of a wrong type or shape, a warning reports a mistake in the rule. In all these
    cases `ignoring` takes plain PyTorch's result.

    Args:
        operators: the names of the operators, as in `torch.ops`: "mylib::scale". A name without a namespace, such as
            "mul", is an operator of aten.
        since: a PyTorch release that has these operators. On an older release, a missing operator is not an error.
        until: the last PyTorch release that has them, if a newer one has renamed them. On a release newer than that, a
            missing operator is not an error.

    Raises:
        ValueError: if there is no operator with this name, if the operator writes into its arguments, or if the library
            already has a rule for it. A rule of your own is replaced.
        TypeError: if an argument is not a string.

    >>> rule("mul")
    Traceback (most recent call last):
    ...
    ValueError: aten::mul has a rule already: mul

    A rule for a custom operator that multiplies element by element:

    >>> from zero_or_nan.ignoring import mask_of, unwrap, zero_ignored
    >>> @torch.library.custom_op("docs::halved", mutates_args=())
    ... def halved(x: torch.Tensor) -> torch.Tensor:
    ...     return x / 2
    >>> @rule("docs::halved")
    ... def halved_by_rule(op, gradient):
    ...     return zero_ignored(op(unwrap(gradient)), mask_of(gradient))
    """
    if not operators or not all(isinstance(operator, str) for operator in operators):
        raise TypeError(f'rule takes names of operators, as in @rule("mylib::scale"), and got {operators}')
    packets = []
    for operator in operators:
        namespace, found, name = operator.rpartition("::")
        packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
        if packet is None and found:
            raise ValueError(f"there is no operator {operator}; define it before its rule")
        if packet is None:
            _refuse_unless_other_release(f"there is no operator {operator}", since, until)
        elif packet in RULES and is_own(RULES[packet]):
            raise ValueError(f"{namespace or 'aten'}::{name} has a rule already: {RULES[packet].__name__}")
        elif all(getattr(packet, overload)._schema.is_mutable for overload in packet.overloads()):
            raise ValueError(f"{operator} writes into its arguments, which no rule can follow; use ignoring.derivative")
        else:
            packets.append(packet)

    def register(implementation: Rule) -> Rule:
        for packet in packets:
            if packet in RULES_OF_SPARSE and not is_own(implementation):
                raise ValueError(
                    f"{packet} has a rule for sparse gradients already: {RULES_OF_SPARSE[packet].__name__}"
                )
        RULES.update(
            dict.fromkeys(
                packets, implementation if is_own(implementation) else checked(implementation, result_check())
            )
        )
        return implementation

    return register


_fused: list[str] = []
"""The operators for which `fused` needs a decomposition."""


@functools.cache
def _decompositions() -> Any:
    """PyTorch's table, imported when it is first needed."""
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    return get_decompositions([getattr(aten, name) for name in _fused if hasattr(aten, name)])


def fused(
    *names: str,
    since: str = "2.6",
    masks: Callable[..., tuple[Tensor, ...]] | None = None,
    set_aside: Callable[[Tensor, tuple[Any, ...]], tuple[Any, ...]] | None = None,
    formula: Callable[..., Any] | None = None,
) -> Rule:
    """Register the rule of fused derivatives, which PyTorch's own decompositions turn into operators that have rules.

    Benefit: one line registers a fused derivative, and its formula is PyTorch's. Downside: a decomposition is slow. It
    runs only if the fused result has a NaN. Otherwise the result is right, and `masks` gives its mask.

    Args:
        names: the operators.
        since: the same as for `rule`.
        masks: gives the masks of the results, as `masks(mask, *args)`, from the mask of the cotangent and the other
            arguments. Without it, the decomposition runs whenever something is ignored.
        set_aside: gives the arguments with 0 in place of rows (or samples) that the loss ignored as a whole.
        formula: the fused derivative in operators that have rules, if PyTorch has it in another place.

    Returns:
        The rule.
    """
    _fused.extend(names if formula is None else ())

    def decomposed(op: Any, *args: Any, **kwargs: Any) -> Any:
        """Plain PyTorch's result where it is finite, and the decomposition's elsewhere."""
        if all(mask_of(arg) is None for arg in args):
            return wrap(op(*unwrap(args), **unwrap(kwargs)))
        mask = mask_of(args[0])
        usual = given = unwrap(args)
        if mask is not None and set_aside is not None:
            given = set_aside(mask, usual)
        exact = op(*given, **unwrap(kwargs))
        results = exact if isinstance(exact, tuple) else (exact,)
        if masks is not None and not any_nan(results):
            mixed = tuple(
                result if result is None else Cotangent(result, counts.expand(result.shape))
                for result, counts in zip(results, masks(full(mask, given[0]), *args[1:]), strict=False)
            )
            return mixed if isinstance(exact, tuple) else mixed[0]
        if given is not usual:  # `prefer_exact` needs plain PyTorch's own result
            exact = op(*usual, **unwrap(kwargs))
        return prefer_exact(exact, (formula or _decompositions()[op])(*args, **kwargs))

    return rule(*names, since=since)(decomposed)


def is_own(implementation: Any) -> bool:
    """True if a rule or a derivative belongs to the library; False if a user wrote it."""
    return str(implementation.__module__).startswith(f"{_LIBRARY}.")


def _refuse_unless_other_release(complaint: str, since: str, until: str | None) -> None:
    """Raise if this release should have the name. On a release that is newer than `NEWEST`, note that it is missing."""
    here = release(torch.__version__)
    if release(since) <= here <= (NEWEST if until is None else release(until)):
        raise ValueError(
            f"{complaint} in PyTorch {torch.__version__}; correct the name, or pass since='…' if older releases "
            "lack it, or until='…' if newer ones do"
        )
    if until is None and here > NEWEST:
        MISSING.append(complaint)


def release(version: str) -> tuple[int, int]:
    """The release of a version, in two numbers: (2, 13) of "2.13.1+cu126"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)
