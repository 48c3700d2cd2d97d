"""What a rule raises: for what it can't do, and, around a user's rule, for a mistake in it."""


class NotFollowed(Exception):
    """What a rule can't do, with a reason in a few words; a warning hands it on to the user.

    From there on the gradient is plain PyTorch's.
    """


class RuleFailed(Exception):
    """A mistake in a rule or a derivative that is not one of the library's own."""
