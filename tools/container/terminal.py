"""A terminal in a container: this one's keys go in as they are typed, ^C included, and its size is passed on."""
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty

from docker.errors import APIError

from stages.lib.refusal import Refusal
from tools.container.engine import started


@contextlib.contextmanager
def raw():
    """This terminal hands keys on unread; afterwards it is as before. Refusal without one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refusal("a shell needs a terminal, and this is none; for commands use `python -m tools.container run -- bash -c '...'`")
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield talk
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def talk(container):
    """For engine.run: a thread that carries bytes both ways until the container has ended."""
    line = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 1})
    there = getattr(line, "_sock", line)

    def carry():
        sources = [there]  # keys wait for the first words of the shell: a ^C before would interrupt the start itself
        fitted = False
        while True:
            for source in select.select(sources, [], [])[0]:
                if source is there:
                    if not (said := there.recv(65536)):
                        return
                    if not fitted:  # before its start a container has no terminal to fit
                        fit(container)
                        fitted, sources = True, [there, sys.stdin]
                    os.write(sys.stdout.fileno(), said)
                elif typed := os.read(sys.stdin.fileno(), 65536):
                    there.sendall(typed)
                else:
                    sources.remove(source)
    signal.signal(signal.SIGWINCH, lambda *_: fit(container))
    return started(carry)


def fit(container):
    columns, lines = shutil.get_terminal_size()
    with contextlib.suppress(APIError):  # not started yet, or ended
        container.resize(height=lines, width=columns)
