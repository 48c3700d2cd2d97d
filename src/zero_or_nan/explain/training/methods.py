"""A method of one object that is explained when it fails: what the callbacks put into a trainer.

A trainer runs the loop, so there is no step of the user's to decorate. Its classes stay as they are: the method is
replaced on the one object that trains. So a subclass's own method is replaced too, and other trainers are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed, nn

from ...ignoring.inside import tree_map
from ..program.tensors import in_several_processes
from ..report.report import NotFiniteError
from .before import Before
from .failure import on_failure

_OWN = frozenset(vars(nn.Module()))
"""What each module has. The search itself puts it back."""


class ExplainedMethod:
    """Replaces a method of an object by the same method, decorated with `on_failure`, until it is put back.

    Args:
        owner: the object.
        name: the name of a method that runs forward and backward.
        model: the model that is trained.
        search: `explain.probe`, if the first call searches the loss of its batch and prints the report.
    """

    def __init__(self, owner: Any, name: str, model: nn.Module, search: Callable[..., Any] | None) -> None:
        put_back(owner, name)  # an exception elsewhere may have ended the training before
        self.owner, self.name = owner, name
        self.model: Any = model
        # Each search runs the model as often as it likes, so models that synchronize would wait for each other.
        is_alone = not in_several_processes() or distributed.get_world_size() == 1
        self.search = search if is_alone else None
        self.is_own = name in vars(owner)
        self.method = getattr(owner, name)
        self.explained = on_failure(self._run, model=model)
        self.counts: Any = None
        self.result: Any = None
        setattr(owner, name, self)

    def keep(self) -> Any:
        """Keep what the owner counts, before a step."""
        return vars(self.owner).copy()

    def restore(self, counts: Any) -> None:
        """Restore what the owner counted before a step, for the second run and after it."""
        vars(self.owner).update(counts)

    def loss_of(self, result: Any) -> Any:
        """The loss in what the method returns. The rest of the result is not checked."""
        return result

    def notes(self, loss: Any) -> Iterator[str]:
        """What the report says about the training, after a step with this loss has failed."""
        raise NotImplementedError

    def loss_fn(self, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The loss of a batch as a function, and its inputs, from the arguments of the method."""
        raise NotImplementedError

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While entered, what a loss notes in lists and dicts of the owner and the model goes to copies.

        The random numbers go on as before, also if the trainer draws some as it prepares the batch.
        """
        before = Before(None, ())
        kept = [(vars(thing), vars(thing).copy()) for thing in (self.owner, self.model)]
        for here, items in kept:
            copies = {name: tree_map(lambda leaf: leaf, value) for name, value in items.items() if name not in _OWN}
            here.update({name: copy for name, copy in copies.items() if isinstance(copy, (list, dict))})
        try:
            yield
        finally:
            for here, items in kept:
                here.clear()
                here.update(items)
            before.put_back()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.counts = self.keep()
        try:
            if self.search is not None:
                search, self.search = self.search, None
                with self.aside():
                    loss_fn, inputs = self.loss_fn(*args)
                    print(f"explain.probe searched the loss of the first batch: {search(loss_fn, *inputs)}")
            self.explained(*args, **kwargs)
            return self.result
        except BaseException as error:
            if isinstance(error, NotFiniteError):
                self.restore(self.counts)
                for note in self.notes(self.loss_of(self.result)):
                    error.report.note(note)
            put_back(self.owner, self.name)
            raise
        finally:
            self.counts = self.result = None

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.restore(self.counts)
        result = self.method(*args, **kwargs)
        if self.result is None:  # a step that fails runs again, also with a remedy in it
            self.result = result
        return self.loss_of(result)


def put_back(owner: Any, name: str) -> None:
    """Give an object its own method back, if it has an explained one."""
    explained = vars(owner).get(name)
    if isinstance(explained, ExplainedMethod):
        delattr(owner, name)
        if explained.is_own:
            setattr(owner, name, explained.method)
