"""The program that becomes a container: makes its namespaces and root, then executes its command.

Runs as a script with the standard library only (`python -I -S launcher.py`), because between fork and exec nothing of the
agent may run. It reads one JSON document from descriptor 3 and, when something fails, writes one line to descriptor 4; that
descriptor closes by itself on a successful exec, which is how the agent learns that the container runs.

The document: `argv`, `env`, `cwd`, `parent` (the agent's pid), and either `join` (the pid of a container whose namespaces to
enter) or `root` (how to make one; absent where user namespaces are not allowed).
"""

# Importing pathlib would double the time it takes to start.
# ruff: noqa: PTH102, PTH103, PTH112, PTH114, PTH115, PTH211
import ctypes
import json
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe imports it, and in an image's root it is not to be found

TYPE_CHECKING = False  # importing typing for its constant would take as long as all the rest
if TYPE_CHECKING:
    from typing import Any

SPEC_FD, ERROR_FD = 3, 4
NOT_FOUND = 127

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x0002_0000, 0x0400_0000, 0x1000_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
# A remount inside a user namespace must keep the flags the mount came with; statvfs and mount use the same bits for these.
_LOCKED_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd"))


def main() -> None:
    """Becomes the container or exits with 126 or 127 and a line on the error descriptor."""
    execute(enter())


def enter() -> "dict[str, Any]":
    """Makes this process the container's, but for its command; returns the document, or exits as `main` does."""
    with os.fdopen(SPEC_FD, "rb") as file:
        spec: dict[str, Any] = json.load(file)
    os.set_inheritable(ERROR_FD, False)
    try:
        if "join" in spec:
            _join(spec["join"])
        elif "root" in spec:
            _isolate(spec["root"])
        die_with(spec["parent"])
        os.umask(0o022)
        os.chdir(spec["cwd"])
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # Python ignores these two for itself; a container starts with the defaults.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    except OSError as error:
        _fail(spec, error)
    return spec


def execute(spec: "dict[str, Any]") -> None:
    """Executes the document's command, or exits as `main` does."""
    try:
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - the pod's own command line
    except OSError as error:
        _fail(spec, error)


def _fail(spec: "dict[str, Any]", error: OSError) -> None:
    code, message = 126, str(error)
    if isinstance(error, FileNotFoundError):
        what = error.filename if error.filename == spec["cwd"] else spec["argv"][0]
        code, message = NOT_FOUND, f'"{what}": no such file or directory'
    os.write(ERROR_FD, message.encode())
    os._exit(code)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def die_with(parent: int) -> None:
    """Ends this process with its parent."""
    # After the namespaces, not before: gaining a namespace's capabilities clears this setting (prctl(2)).
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _join(pid: int) -> None:
    for name in ("user", "uts", "mnt"):
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        _check(_libc.setns(descriptor, 0), f"setns {name}")
        os.close(descriptor)


def _isolate(root: "dict[str, Any]") -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{root['uid']} {uid} 1")
    _write("/proc/self/gid_map", f"{root['gid']} {gid} 1")
    name = root["hostname"].encode()
    _check(_libc.sethostname(name, len(name)), "sethostname")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    new_root = root["folder"]
    _mount("tmpfs", new_root, "tmpfs", 0, "mode=0755")
    for what, path, source in root["make"]:
        _make(what, new_root + path, source)
    if root["read_only"]:
        attributes = _MountAttr(_MOUNT_ATTR_RDONLY, 0, 0, 0)
        size = ctypes.sizeof(attributes)
        path = os.fsencode(new_root)
        result = _libc.syscall(
            _SYS_MOUNT_SETATTR,
            _AT_FDCWD,
            path,
            _AT_RECURSIVE,
            ctypes.byref(attributes),
            ctypes.c_size_t(size),
        )
        _check(result, "mount_setattr")
    for path in root["tmpfs"]:
        _mount("tmpfs", new_root + path, "tmpfs", 0, "mode=1777")
    for source, target, read_only, is_dir in root["binds"]:
        _bind(source, new_root + target, read_only=read_only, is_dir=is_dir)
    os.chdir(new_root)
    # Both arguments the same: the old root ends up on top of the new one and is then detached (pivot_root(2)).
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _make(what: str, target: str, source: str) -> None:
    if what == "dir":
        os.makedirs(target, exist_ok=True)
    elif what == "file":
        _touch(target)
    elif os.path.islink(source):
        os.symlink(os.readlink(source), target)
    else:
        is_dir = os.path.isdir(source)
        os.mkdir(target) if is_dir else _touch(target)
        try:
            # Recursive, because mounts below a mount of another namespace's owner are locked to it.
            _mount(source, target, None, _MS_BIND | _MS_REC)
        except OSError:
            # Something on this machine that even its owner may not look at: an empty place is what is left of it.
            return


def _bind(source: str, target: str, *, read_only: bool, is_dir: bool) -> None:
    if not os.path.lexists(target):
        os.makedirs(target) if is_dir else _touch(target)
    _mount(source, target, None, _MS_BIND | _MS_REC)
    if read_only:
        flags = os.statvfs(target).f_flag & _LOCKED_FLAGS
        _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _mount(
    source: "str | None", target: str, kind: "str | None", flags: int, options: "str | None" = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(result, f"mount {source or ''} on {target}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(descriptor, text.encode())
    os.close(descriptor)


if __name__ == "__main__":
    main()
    sys.exit(1)
