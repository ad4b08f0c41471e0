"""Every failure of a download is one message; faults of our own are passed on."""

import http.client

import pytest

from daso_bench.datasets.downloads import fetching


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("File not found or corrupted."),
        OSError("<urlopen error [Errno -2] Name or service not known>"),
        http.client.BadStatusLine("<html>please\nlog in</html>"),
        ValueError("Invalid IPv6 URL"),
        TimeoutError(),
    ],
    ids=["corrupted", "no network", "no HTTP", "malformed address", "no answer"],
)
def test_a_failed_download_is_one_message(error: Exception) -> None:
    message = r"^Title could not be fetched \(.+\): elsewhere$"
    with pytest.raises(ConnectionError, match=message), fetching("Title", "elsewhere"):
        raise error


def test_what_is_no_failure_of_a_download_is_passed_on() -> None:
    with pytest.raises(TypeError, match="a fault of ours"), fetching("Title", "elsewhere"):
        raise TypeError("a fault of ours")
