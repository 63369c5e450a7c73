"""The one error that a user may meet: an input that cannot be used, said in a sentence."""
import sys


class Refusal(ValueError):
    """What was given, what was expected, and what to do about it. `run` prints it without a traceback."""


def run(main):
    """Call a stage's `main()`; a Refusal becomes one line on stderr and exit code 1.

    Anything else is a fault of Eyrie's own and keeps its traceback.
    """
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"refused: {refusal}")
