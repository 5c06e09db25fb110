"""Runs a program under a filter of system calls like the one that Docker sets by default.

Containers get such a filter, so that nothing in them makes namespaces or mounts. It is run as a
file: `python -I -S under_filter.py FOLDER PROGRAM ARG...`, with the folder of `confine.py`.
"""

import errno
import importlib
import os
import sys

_REFUSED = (
    "unshare setns mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick"
    " mount_setattr keyctl add_key request_key bpf perf_event_open userfaultfd open_by_handle_at"
    " kexec_load kexec_file_load io_uring_setup io_uring_enter io_uring_register"
)
_NEW_NAMESPACES = 0x7E020000
_PR_SET_NO_NEW_PRIVS = 38

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    confine = importlib.import_module("confine")

    confine._call("no_new_privs", "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    confine._refuse_calls(
        [
            *(confine._Rule(call) for call in _REFUSED.split()),
            confine._Rule("clone3", errno.ENOSYS),
            confine._Rule("clone", argument=0, mask=_NEW_NAMESPACES, values=(0,)),
        ]
    )
    os.execvp(sys.argv[2], sys.argv[2:])
