"""Keeps one server: starts a command and ends all of it as soon as its owner stops, dies or says so.

`python keeper.py OWNER GRACE COMMAND...` with a pipe as stdin that only the owner (process id OWNER) holds. The end of that pipe, a
SIGTERM or a new parent ends the command: SIGTERM, GRACE seconds, SIGKILL. A prctl death signal in the server alone would not do: it
fires when the *thread* that started the server ends, and it does not reach the server's own processes. Only the standard library, so
that it starts in 50 ms and holds no memory.
"""
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
prctl = ctypes.CDLL(None, use_errno=True).prctl


def descendants(root):
    """Ids of the living processes under `root`. Orphans among them are its children: it is their subreaper."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it has just ended
            children.setdefault(int(parent), []).append((int(name), state))
    found, todo = [], [root]
    while todo:
        for pid, state in children.get(todo.pop(), ()):
            todo.append(pid)
            if state not in (b"Z", b"X"):
                found.append(pid)
    return found


def send(signum):
    """`signum` to all that is left of the command; what is left."""
    left = descendants(os.getpid())
    for pid in left:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass
    return left


def end(grace):
    deadline = time.monotonic() + grace
    left = send(signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = descendants(os.getpid())
    while send(signal.SIGKILL):  # again until none is left: one of them may have forked in between
        time.sleep(0.05)


def main():
    owner, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # should the keeper itself be killed
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error}")
    while server.poll() is None and not told and os.getppid() == owner:
        if select.select([0], [], [], 0.2)[0]:
            break  # nothing is ever written: readable means closed
    end(grace)
    sys.exit(server.wait() & 0xFF)


if __name__ == "__main__":
    main()
