"""Run a command inside a memory cgroup (v1 or v2) or under RLIMIT_DATA and see what it used.  Imported by peers.py and memory-caps.py."""
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


# An ended script must leave neither a running model nor a group behind: SIGTERM unwinds like Ctrl-C.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def size(text):
    """'8GiB', '8G', '512M', '4096' -> bytes."""
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.I)
    if not m:
        raise SystemExit("size %r: expected a number with K, M, G, KiB, MiB or GiB" % text)
    return int(float(m[1]) * UNITS[m[2].upper()])


def read(path, default=""):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return default


class Group:
    """A memory cgroup of its own below the caller's, or at the controller's root where that folder is not visible."""

    def __init__(self, limit):
        own = [x.split(":", 2) for x in read("/proc/self/cgroup").split("\n") if x]
        mounts = [x.split() for x in read("/proc/mounts").split("\n") if x]
        v1 = [m[1] for m in mounts if m[2] == "cgroup" and "memory" in m[3].split(",")]
        v2 = [m[1] for m in mounts if m[2] == "cgroup2" and "memory" in read(m[1] + "/cgroup.controllers").split()]
        if v1:
            at, below = v1[0], [x[2] for x in own if "memory" in x[1].split(",")]
            names = "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
        elif v2:
            at, below = v2[0], [x[2] for x in own if x[0] == "0"]
            names = "memory.max", "memory.peak", "memory.events"
        else:
            raise SystemExit("no memory cgroup controller is mounted: run where cgroup v1 memory or cgroup v2 with the memory controller is there")
        at += (below or ["/"])[0].rstrip("/") if os.path.isdir(at + (below or ["/"])[0]) else ""
        self.path, self.limit = "%s/epq-bench-%d" % (at, os.getpid()), limit
        self.f_limit, self.f_peak, self.f_events = (os.path.join(self.path, n) for n in names)
        try:
            os.mkdir(self.path)
            with open(self.f_limit, "w") as f:
                f.write(str(limit))
        except OSError as e:
            self.close()
            raise SystemExit("no memory cgroup of %d bytes can be made: %s (needs root, or a delegated group)" % (limit, e))

    def enter(self):
        """Called in the child between fork and exec."""
        with open(self.path + "/cgroup.procs", "w") as f:
            f.write("0")

    def reset(self):
        """Start a new peak (v1; a v2 peak is that of the group's life)."""
        if self.f_peak.endswith("max_usage_in_bytes"):
            with open(self.f_peak, "w") as f:
                f.write("0")

    def peak(self):
        return int(read(self.f_peak, "0") or 0)

    def kills(self):
        m = re.search(r"oom_kill (\d+)", read(self.f_events))
        return int(m[1]) if m else 0

    def close(self):
        for _ in range(50):                             # the kernel needs a moment to empty the group
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


class Used:
    """What one run used: exit status, output, seconds, peaks in bytes as sampled every 20 ms, bytes read from the device, seconds it stood
    still because somebody sent it SIGSTOP (its times are then worth nothing)."""

    def __init__(self):
        self.rc, self.out, self.err, self.seconds, self.late = None, "", "", 0.0, False
        self.anonymous = self.rss = self.swap = self.data = self.device_read = self.stopped = 0
        self.group_peak = self.kills = 0

    def last(self):
        """The line that says why: a crash's first words, else the last line."""
        lines = [x for x in (self.err + "\n" + self.out).split("\n") if x.strip()]
        crash = [x for x in lines if re.match(r"panic:|fatal error:|runtime[:/]|SIG[A-Z]+:|terminate called", x)]
        return (crash or lines[-1:] or ["no output"])[0][:300]


def _status(pid):
    t = read("/proc/%d/status" % pid)

    def kib(name):
        m = re.search(r"^%s:\s+(\d+) kB" % name, t, re.M)
        return int(m[1]) << 10 if m else 0
    return (kib("RssAnon"), kib("VmHWM"), kib("VmSwap"), kib("VmData")), bool(re.search(r"^State:\s+[Tt]", t, re.M))


def run(cmd, group=None, data_limit=None, env=None, timeout=900):
    """Run cmd to its end -> Used.  The whole process tree is killed after timeout seconds."""
    def child():
        os.setsid()
        if group:
            group.enter()
        if data_limit:
            resource.setrlimit(resource.RLIMIT_DATA, (data_limit, data_limit))
    u, kills = Used(), group.kills() if group else 0
    if group:
        group.reset()
    start = time.monotonic()
    p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=child, env={**os.environ, **(env or {})}, text=True, errors="replace")
    texts = ["", ""]

    def drain(i, f):
        texts[i] = f.read()
    readers = [threading.Thread(target=drain, args=x) for x in ((0, p.stdout), (1, p.stderr))]
    for r in readers:
        r.start()
    try:
        while True:
            seen, stopped = _status(p.pid)
            u.stopped += 0.02 * stopped
            u.anonymous, u.rss, u.swap, u.data = (max(a, b) for a, b in zip((u.anonymous, u.rss, u.swap, u.data), seen))
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - start > timeout and not u.late:
                u.late = True
                os.killpg(p.pid, signal.SIGKILL)
            time.sleep(0.02)
    except BaseException:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        raise
    u.seconds = time.monotonic() - start
    p.returncode = u.rc = os.waitstatus_to_exitcode(status)
    for r in readers:
        r.join()
    u.out, u.err = texts
    u.device_read = usage.ru_inblock * 512
    if group:
        u.group_peak, u.kills = group.peak(), group.kills() - kills
    return u


def shards(path):
    """All files of a split model, or the one file."""
    m = re.fullmatch(r"(.*-)\d{5}(-of-(\d{5})\.gguf)", path)
    return ["%s%05d%s" % (m[1], i + 1, m[2]) for i in range(int(m[3]))] if m else [path]


def cached(path):
    """Bytes of the file in the page cache (cachestat, Linux 6.5), or None where the kernel cannot tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    span, stat = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    fd = os.open(path, os.O_RDONLY)
    try:
        rc = libc.syscall(451, fd, ctypes.byref(span), ctypes.byref(stat), 0)
    finally:
        os.close(fd)
    return stat[0] * os.sysconf("SC_PAGE_SIZE") if rc == 0 else None


def drop(path):
    """Throw the file's clean pages out of the page cache: pages another process read are charged to nobody in the group, so they would be free memory there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def warm(path):
    """Read the file once, so that its pages are in the page cache as far as memory allows."""
    buf = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as f:
        while f.readinto(buf):
            pass


class ReadAhead:
    """Sets the read-ahead of the file's device for a while; mmap reads that much around each page fault."""

    def __init__(self, path, kib):
        d = os.stat(path).st_dev
        at = "/sys/dev/block/%d:%d" % (os.major(d), os.minor(d))
        at = at if os.path.isdir(at + "/queue") else os.path.realpath(at + "/..")
        self.file, self.kib = at + "/queue/read_ahead_kb", kib

    def _set(self, v):
        try:
            with open(self.file, "w") as f:
                f.write(str(v))
        except OSError as e:
            print("read-ahead stays at %s KiB: %s" % (read(self.file, "?").strip(), e))

    def __enter__(self):
        self.before = read(self.file).strip()
        if self.kib is not None and self.before:
            self._set(self.kib)

    def __exit__(self, *_):
        if self.kib is not None and self.before:
            self._set(self.before)


def wait_idle(percent, seconds=600):
    """Wait until the CPUs were idle for that share of three seconds; False when it did not happen in time."""
    def ticks():
        v = [int(x) for x in read("/proc/stat").split("\n")[0].split()[1:9]]
        return v[3] + v[4], sum(v)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        a = ticks()
        time.sleep(3)
        b = ticks()
        if 100 * (b[0] - a[0]) >= percent * (b[1] - a[1]):
            return True
    return False


def machine(path=None):
    """One line a reader can compare by."""
    cpu = re.search(r"model name\s*: (.*)", read("/proc/cpuinfo"))
    mem = re.search(r"MemTotal:\s+(\d+)", read("/proc/meminfo"))
    flags = re.search(r"^flags\s*: (.*)", read("/proc/cpuinfo"), re.M)
    has = [f for f in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8") if flags and f in flags[1].split()]
    line = "%s, %d CPUs (%s), %.1f GiB RAM, Linux %s" % (
        cpu[1] if cpu else os.uname().machine, len(os.sched_getaffinity(0)), " ".join(has),
        int(mem[1]) / (1 << 20) if mem else 0, os.uname().release)
    if path:
        line += "; model %.2f GiB" % (sum(map(os.path.getsize, shards(path))) / (1 << 30))
    return line
