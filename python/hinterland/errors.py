"""What the pool raises: an OSError with an errno, words, and a hint on what to do."""

import errno


class HinterlandError(OSError):
    """The pool, a node or the system said no. `errno`, `strerror`, and `hint`: what to try."""

    hint: str

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.hint = text.rpartition("(hint: ")[2].removesuffix(")") if "(hint: " in text else ""


class NotFoundError(HinterlandError, FileNotFoundError):
    """There is no object of this name, or nobody has the address."""


class ExistsError(HinterlandError, FileExistsError):
    """The name is taken."""


class AccessError(HinterlandError, PermissionError):
    """It may not be done: a sealed object is not written."""


class TimedOutError(HinterlandError, TimeoutError):
    """It was waited for long enough."""


class NoNodeError(HinterlandError, ConnectionError):
    """No node answers, or the session with it has ended."""


_KINDS: "dict[int, type[HinterlandError]]" = {
    errno.ENOENT: NotFoundError,
    errno.EEXIST: ExistsError,
    errno.EACCES: AccessError,
    errno.EPERM: AccessError,
    errno.ETIMEDOUT: TimedOutError,
    errno.ENOTCONN: NoNodeError,
    errno.EHOSTUNREACH: NoNodeError,
}


def for_code(code: int, text: str) -> HinterlandError:
    """The error for an errno value and words that end in a hint."""
    return _KINDS.get(code, HinterlandError)(code, text)
