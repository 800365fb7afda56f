"""The command line as it was typed, for messages that say how to go on."""

import sys


def typed_words() -> list[str]:
    """Return the words after `ptctl`."""
    return sys.argv[1:]
