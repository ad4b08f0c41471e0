"""Fetching files from the network, for one process at a time; without one, how to prepare elsewhere."""

import contextlib
import http.client
import io
import socket
import textwrap
from collections.abc import Iterator

TIMEOUT_S = 30.0  # without an answer
# HTTPException: of an answer that is none; ValueError: of an address that is none, to which it redirects.
_FAILURES = (RuntimeError, OSError, http.client.HTTPException, ValueError)


@contextlib.contextmanager
def fetching(title: str, elsewhere: str) -> Iterator[None]:
    """Run a download of torchvision's: no answer for 30 s, or any other failure, is one short message.

    title: of the data set; elsewhere: how to come by it without this machine's network.
    Raises ConnectionError.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except _FAILURES as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{title} could not be fetched ({_short(why)}): {elsewhere}") from error
    finally:
        socket.setdefaulttimeout(before)


def _short(why: str) -> str:
    """At most 200 characters, whole words where there are any."""
    return textwrap.shorten(why, 200, placeholder=" ...") if " " in why[:200] else why[:200]


def elsewhere(name: str, root: str, files: str) -> str:
    """The ways out where there is no network, in one sentence."""
    return (
        f"on a machine with a network run daso-bench prepare dataset={name} dataset.root=DIR and copy DIR "
        f"to {root}, or put {files} there"
    )
