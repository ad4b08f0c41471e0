"""The error of a file that is there and is not what belongs there; one that cannot be read is another."""


class BadFile(OSError):
    """A data set's file is damaged, cut short, or another's: the message names it and the way out."""
