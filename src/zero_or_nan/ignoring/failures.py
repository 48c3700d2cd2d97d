"""What a rule raises: for what it can't do, and, around a user's rule, for a mistake in it."""


class NotFollowed(Exception):
    """A rule raises this exception if it can't handle a case. Give the reason in a few words.

    A warning shows the reason to the user. From that operator on, the gradient is plain PyTorch's.
    """


class RuleFailed(Exception):
    """A mistake in a rule or a derivative that is not one of the library's own."""
