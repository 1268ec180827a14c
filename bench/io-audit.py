#!/usr/bin/env python3
"""Where the bytes of a run come from and where they stay: with O_DIRECT no expert may be left in the page cache.

    bench/io-audit.py -m MODEL.gguf --ram 8GiB [-n 48] [--bin bin/epq-uring] [-- further arguments of run]

Two runs, each after the file was thrown out of the page cache: one as always, one with --no-direct as the control. After each, mincore
tells which pages of the file the page cache holds: pages of experts, and pages of the resident weights.  The device bytes are the kernel's
own count for the process; they are compared to what the pager read plus the resident weights.  Exit status 1 when the first run left
experts in the page cache, when its counts differ by more than 1 %, or when the control shows no difference.
"""
import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402

PAGE, MiB = mmap.PAGESIZE, 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def in_core(path):
    """One byte per page of the file: is it in the page cache?"""
    size = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if at in (None, ctypes.c_void_p(-1).value):
            raise SystemExit("mmap of %s: %s" % (path, os.strerror(ctypes.get_errno())))
        seen = ctypes.create_string_buffer((size + PAGE - 1) // PAGE)
        if libc.mincore(at, size, seen):
            raise SystemExit("mincore of %s: %s" % (path, os.strerror(ctypes.get_errno())))
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    finally:
        os.close(fd)
    return bytes(b & 1 for b in seen.raw[:(size + PAGE - 1) // PAGE])


def audit(files, tensors):
    """Bytes in the page cache inside routed experts, and outside.  Pages at the border of two tensors count as outside."""
    inside = outside = 0
    for shard, path in enumerate(files):
        core = in_core(path)
        experts = 0
        for t in tensors:
            if t["shard"] == shard and "_exps" in t["name"]:
                experts += sum(core[-(-t["offset"] // PAGE):(t["offset"] + t["size"]) // PAGE])
        inside += experts * PAGE
        outside += (sum(core) - experts) * PAGE
    return inside, outside


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--bin", default=os.environ.get("EPQ_BIN", "bin/epq-uring"))
    a.add_argument("--ram", default="8GiB")
    a.add_argument("-n", type=int, default=48)
    a.add_argument("args", nargs="*")
    o = a.parse_args()
    files = capped.shards(o.model)
    info = json.loads(subprocess.run([o.bin, "inspect", "--json", o.model], capture_output=True, text=True, check=True).stdout)
    cmd = [o.bin, "run", "-m", o.model, "--ram", o.ram, "-p", "The capital of France is", "-n", str(o.n), "--temp", "0", "--ignore-eos", "--no-warm", "--json"] + o.args
    print("machine ", capped.machine(o.model))
    print("command ", " ".join(cmd[1:]).replace(o.model, os.path.basename(o.model)), "\n")
    print("| run | experts in the page cache | other pages there | pager read | resident weights | device read (kernel) | difference |")
    print("| " + "--- | " * 7)
    bad, kept = [], {}
    for name, extra in ("O_DIRECT", []), ("page cache", ["--no-direct"]):
        for f in files:
            capped.drop(f)
        left = sum(audit(files, info["tensors"]))
        u = capped.run(cmd + extra)
        if u.rc:
            raise SystemExit("%s: exit %d: %s" % (name, u.rc, u.last()))
        j = json.loads(u.out)
        inside, outside = audit(files, info["tensors"])
        pager = j["bytes_read"]
        off = u.device_read / (pager + max(info["resident_bytes"] - left, 0)) - 1
        kept[name] = inside
        print("| %s | %.1f MiB | %.1f MiB | %.1f MiB | %.1f MiB | %.1f MiB | %+.2f %% |" % (
            name, inside / MiB, outside / MiB, pager / MiB, info["resident_bytes"] / MiB, u.device_read / MiB, 100 * off), flush=True)
        if name == "O_DIRECT" and inside:
            bad.append("experts were left in the page cache")
        if name == "O_DIRECT" and abs(off) > 0.01:
            bad.append("the kernel counted %+.2f %% of what the pager and the resident weights explain" % (100 * off))
    if kept["page cache"] <= kept["O_DIRECT"]:
        bad.append("the control run left no experts in the page cache either: nothing was shown")
    for b in bad:
        print("FAULT:", b)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
