"""Makes its standard input its controlling terminal and becomes a command: `python on_terminal.py CMD…`."""

import fcntl
import os
import signal
import sys
import termios

for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(signum, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
