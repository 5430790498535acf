"""The one error that bad input ends in."""


class InputError(ValueError):
    """Input that cannot be evaluated as it is.

    Parameters
    ----------
    problems : str or list of str
        One line a problem: where it is, what is wrong, what is expected.

    Attributes
    ----------
    problems : list of str
        The same lines; ``str(error)`` joins them.
    """

    def __init__(self, problems):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class OptionError(InputError):
    """An option whose value is outside its range, such as ``k=0``."""
