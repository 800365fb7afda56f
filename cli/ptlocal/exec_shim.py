"""The last step before a container's own program: run as a script, it replaces itself with that program.

It ties the process to its parent, so that its containers die with a kubelet that is killed with -9, then execs.
Imports nothing of ours, because it is started with `python -I -S` to be quick.

    exec_shim.py PARENT_PID ERROR_FILE PROGRAM [ARGUMENT...]
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
START_ERROR = 128  # what a container runtime reports when the program cannot be started


def main() -> None:
    """Tie this process to its parent and exec the program."""
    parent, error_file, *argv = sys.argv[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(128 + signal.SIGKILL)  # the parent died before the line above took hold
    if os.isatty(0):  # `exec -t`: this session's terminal, so that Ctrl-C there reaches the program
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the supervisor blocks signals that it waits for
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these, and ignoring is inherited
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.sep not in argv[0]:
            message = f'exec: "{argv[0]}": executable file not found in $PATH'
        else:
            message = f'exec: "{argv[0]}": {(error.strerror or str(error)).lower()}'
        with open(error_file, "w") as file:
            file.write(message)
        os._exit(START_ERROR)


if __name__ == "__main__":
    main()
