"""For the person who watches: rate and time left on a terminal, a plain line now and then in a log."""
import sys

from tqdm import tqdm


def bar(title, total, unit="tok"):
    """A tqdm bar over `total` units. In a log (no terminal) it prints every 15 seconds instead of ten times a second."""
    watched = sys.stderr.isatty()
    return tqdm(total=total, desc=title, unit=unit, unit_scale=True, dynamic_ncols=watched, ascii=not watched,
                mininterval=0.3 if watched else 15, file=sys.stderr)


def summary(stage, **figures):
    """One line that closes a stage: `train | 612 steps | tau 1.44 | ...`."""
    print(" | ".join([f"{stage:<8}", *(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())]),
          flush=True)
