"""The exit codes of every command, as `daso-bench --help` lists them."""

OK = 0
FAILED = 1  # a run failed, diverged, timed out or was cancelled
WRONG_REQUEST = 2
MACHINE = 3  # this machine cannot do it
INTERRUPTED = 130  # as of a shell after SIGINT
