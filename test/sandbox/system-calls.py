"""Tries system calls; prints the outcome of each: ok, the name of the error, or the signal that ended it."""

import ctypes, errno, mmap, os, platform, signal, socket, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"


def call(x64, arm64, *arguments):
    """Makes a system call by its number; arguments are chosen so that it has no effect where it is permitted."""
    number = arm64 if ARM else x64
    if number is None:
        return "not on this machine"
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(one & (2**64 - 1)) for one in arguments])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def in_child(attempt):
    """Runs an attempt in a child process, which it may end."""
    child = os.fork()
    if child == 0:
        attempt()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "ok"


def open_socket(family, kind=socket.SOCK_STREAM):
    try:
        socket.socket(family, kind).close()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def call_of_32_bits():
    """Enters the kernel as a program of 32 bits does: mov eax, 20 (getpid); int 0x80; ret."""
    if ARM:
        return "not on this machine"
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    return in_child(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code))))


def set_id(attempt):
    """Tries to leave a file with a set-ID bit; `attempt` gets its path and may make it."""
    open(path := "file", "w").close()
    try:
        attempt(path)
        return "ok" if os.stat(path).st_mode & 0o6000 else "ignored"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)


def raw(x64, arm64, *arguments):
    """Makes a system call by its number, as call does; raises its error."""
    number = arm64 if ARM else x64
    if number is None:
        raise OSError(errno.EPERM, "not on this machine")
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def made(make):
    """Makes the file itself instead of changing one."""

    def attempt(path):
        os.unlink(path)
        try:
            make(path)
        except OSError:
            open(path, "w").close()
            raise

    return attempt


HERE = ctypes.c_long(-100)  # AT_FDCWD
name = lambda path: ctypes.c_char_p(path.encode())
SET = 0o4755
CREATE = os.O_CREAT | os.O_WRONLY
HOW = (ctypes.c_uint64 * 3)(CREATE, SET, 0)
set_ids = {
    "chmod": lambda path: raw(90, None, name(path), SET),
    "chmod of the group": lambda path: os.chmod(path, 0o2755),
    "fchmod": lambda path: os.fchmod(os.open(path, os.O_RDONLY), SET),
    "fchmodat": lambda path: raw(268, 53, HERE, name(path), SET),
    "fchmodat2": lambda path: raw(452, 452, HERE, name(path), SET, 0),
    "open": made(lambda path: raw(2, None, name(path), CREATE, SET)),
    "openat": made(lambda path: os.close(os.open(path, CREATE, SET))),
    "openat of an unnamed file": lambda path: raw(257, 56, HERE, name("."), os.O_TMPFILE | os.O_WRONLY, SET),
    "openat2": made(lambda path: raw(437, 437, HERE, name(path), HOW, 24)),
    "creat": made(lambda path: raw(85, None, name(path), SET)),
    "mkdir": made(lambda path: os.mkdir(path, SET)),
    "mkdirat": made(lambda path: raw(258, 34, HERE, name(path), SET)),
    "mknod": made(lambda path: raw(133, None, name(path), 0o100000 | SET, 0)),
    "mknodat": made(lambda path: raw(259, 33, HERE, name(path), 0o100000 | SET, 0)),
}


BAD = 1  # an address that cannot be read
HUGE = 1 << 20
attempts = {
    "socket AF_INET": lambda: open_socket(socket.AF_INET),
    "socketpair AF_UNIX": lambda: (socket.socketpair(), "ok")[1],
    "socket AF_UNIX": lambda: open_socket(socket.AF_UNIX),
    "socket AF_VSOCK": lambda: open_socket(socket.AF_VSOCK),
    "socket AF_ALG": lambda: open_socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
    "socket AF_PACKET": lambda: open_socket(socket.AF_PACKET, socket.SOCK_RAW),
    "io_uring_setup": lambda: call(425, 425, 1, BAD),
    "userfaultfd": lambda: call(323, 282, 1),
    "keyctl": lambda: call(250, 219, 0, -1, 0),
    "mount": lambda: call(165, 40, BAD, BAD, BAD, 0, BAD),
    "fsopen": lambda: call(430, 430, BAD, -1),
    "setns": lambda: call(308, 268, -1, 0),
    "open_by_handle_at": lambda: call(304, 265, -1, BAD, 0),
    "ptrace": lambda: call(101, 117, 16, 2**22 + 1, 0, 0),
    "process_vm_readv": lambda: call(310, 270, 2**22 + 1, 0, 0, 0, 0, 0),
    "pidfd_getfd": lambda: call(438, 438, -1, 0, 0),
    "bpf": lambda: call(321, 280, 0, 0, HUGE),
    "perf_event_open": lambda: call(298, 241, BAD, 0, -1, -1, 0),
    "unshare of users": lambda: call(272, 97, 0x10000000 | 0x00010000 | 0x80),
    "clone of users": lambda: call(56, 220, 0x10000000 | 0x00000200, 0, 0, 0, 0),
    "clone3": lambda: call(435, 435, 0, 0),
    "ioctl TIOCSTI": lambda: call(16, 29, 2, 0x5412, 0),
    "x32 getpid": lambda: in_child(lambda: call(0x40000000 | 39, None)),
    "32 bits getpid": call_of_32_bits,
    "fork": lambda: in_child(lambda: None),
    "chmod without set-ID bits": lambda: call(268, 53, -100, BAD, 0o1777),
    "openat to read": lambda: (os.close(os.open("/dev/null", os.O_RDONLY, SET)), "ok")[1],
    **{f"set-ID by {way}": lambda attempt=attempt: set_id(attempt) for way, attempt in set_ids.items()},
}

with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    print("\n".join(f"{name}: {attempt()}" for name, attempt in attempts.items()))
