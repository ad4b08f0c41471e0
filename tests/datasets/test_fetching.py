"""Whatever a network answers, a failed download is one message; a listener of our own stands for it."""

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchvision.datasets.utils import download_url

from daso_bench.datasets.downloads import fetching

# urllib leaves the socket of an answer that it cannot read to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """No socket is left to the tests of other files."""
    yield
    gc.collect()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers every request with the parameter's bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(request.param)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def fetch(url: str, folder: Path) -> str:
    """What is told of a download that fails."""
    with (
        pytest.raises(ConnectionError, match=r"^Title could not be fetched \(.+\): elsewhere$") as caught,
        fetching("Title", "elsewhere"),
    ):
        download_url(url, str(folder), "file", "0" * 32)
    return str(caught.value)


@pytest.mark.parametrize(
    "answering",
    [
        b"<html>please log in</html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["no HTTP", "half", "forbidden", "led nowhere"],
    indirect=True,
)
def test_a_garbled_answer_is_one_message(answering: str, tmp_path: Path) -> None:
    fetch(f"{answering}/file", tmp_path)


def test_what_is_no_failure_of_a_download_is_passed_on() -> None:
    with pytest.raises(TypeError, match="a fault of ours"), fetching("Title", "elsewhere"):
        raise TypeError("a fault of ours")
