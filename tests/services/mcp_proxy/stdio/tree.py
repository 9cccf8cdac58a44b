"""A server that starts every kind of process that is hard to end. Run as `python -I -S tree.py polite|deaf`.

`polite` echoes and exits at the end of its input; `deaf` reads nothing and ignores every signal that can be ignored.
"""

import os
import signal
import sys
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def ready(role):
    name = f"{os.environ['READY_FOLDER']}/{role}"
    with open(f"{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.new", name)  # noqa: PTH104


def be_deaf():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def let_go():
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def child(role, *prepare):
    if os.fork() == 0:
        for step in prepare:
            step()
        ready(role)
        while True:
            time.sleep(60)


def leave_parent():
    if os.fork():
        os._exit(0)


def main():
    child("plain")
    child("own-group", os.setpgrp)
    child("own-session", os.setsid)
    child("deaf-child", be_deaf)
    child("daemon", os.setsid, leave_parent, let_go)
    child("deaf-daemon", os.setsid, leave_parent, let_go, be_deaf)
    deaf = sys.argv[1] == "deaf"
    if deaf:
        be_deaf()
    ready("server")
    while deaf:
        time.sleep(60)
    while data := os.read(0, 65536):
        os.write(1, data)


main()
