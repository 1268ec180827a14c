#!/usr/bin/env python3
"""epq-uring under memory limits the kernel enforces: what it planned, what it used, and whether the answer stayed the same.

    bench/memory-caps.py -m MODEL.gguf --limits 2GiB,4GiB,8GiB [--contexts 512,4096] [--bin bin/epq-uring] [--kinds cgroup,rlimit,both] [-n 64]

cgroup   a memory cgroup of that size (v1 or v2; needs root): it counts anonymous memory, page cache and the kernel's share
rlimit   RLIMIT_DATA of that size, as `prlimit --data=BYTES` sets it: it counts private writable memory, touched or not
both     the two at once
Each run gets --ram auto, so the program must find the limit by itself.  Peaks are sampled from outside every 20 ms.  Exit status 1
when a run failed, was killed, swapped, took more than its limit, left more of it unused than the larger of 3 % and 96 MiB (though not
all experts are in memory), or gave other tokens than the first one.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402

MiB = 1 << 20


def faults(u, j, limit, first, experts):
    """What is wrong with this run, in words."""
    if u.rc != 0:
        yield "killed by the memory limit" if u.kills else "not over in time" if u.late else "exit %d: %s" % (u.rc, u.last())
        return
    if u.anonymous > limit:
        yield "anonymous peak %d MiB above the limit" % (u.anonymous // MiB)
    if u.group_peak > limit:
        yield "the group's peak %d MiB above the limit" % (u.group_peak // MiB)
    if u.kills:
        yield "something in the group was killed"
    left = limit - (u.group_peak or u.anonymous)
    if left > max(0.03 * limit, 96 * MiB) and j["arena_slots"] < experts:
        yield "%d MiB left unused" % (left // MiB)
    if u.swap or j["vm_swap_bytes"]:
        yield "swapped %d KiB" % (max(u.swap, j["vm_swap_bytes"]) >> 10)
    if j["budget_bytes"] > limit:
        yield "planned %d MiB" % (j["budget_bytes"] // MiB)
    if first is not None and j["output_tokens"] != first:
        yield "other tokens than the first run"


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--bin", default=os.environ.get("EPQ_BIN", "bin/epq-uring"))
    a.add_argument("--limits", default="4GiB,8GiB")
    a.add_argument("--contexts", default="4096")
    a.add_argument("--kinds", default="cgroup,rlimit")
    a.add_argument("-n", type=int, default=64)
    a.add_argument("-p", dest="prompt", default="The capital of France is")
    a.add_argument("--timeout", type=int, default=900)
    a.add_argument("args", nargs="*", help="further arguments of `epq-uring run`, after --")
    o = a.parse_args()
    kinds = o.kinds.split(",")
    if set(kinds) - {"cgroup", "rlimit", "both"}:
        a.error("--kinds: cgroup, rlimit and both are known, not %s" % o.kinds)
    cmd = [o.bin, "run", "-m", o.model, "-p", o.prompt, "-n", str(o.n), "--temp", "0", "--ignore-eos", "--json"] + o.args
    print("machine ", capped.machine(o.model))
    print("command ", " ".join(cmd[1:]).replace(o.model, os.path.basename(o.model)), "\n")
    info = json.loads(subprocess.run([o.bin, "inspect", "--json", o.model], capture_output=True, text=True, check=True).stdout)["experts"]
    experts = info["layers"] * info["per_layer"]
    print("| limit | context | kind | budget MiB | bound by | anonymous peak | its own count | RSS peak | VmData | group peak | VmSwap | slots | hits | decode tok/s | fault |")
    print("| " + "--- | " * 15)
    first, bad = None, 0
    for limit, context, kind in itertools.product(map(capped.size, o.limits.split(",")), o.contexts.split(","), kinds):
        for f in capped.shards(o.model):
            capped.drop(f)
        group = capped.Group(limit) if kind != "rlimit" else None
        try:
            u = capped.run(cmd + ["-c", context], group=group, data_limit=limit if kind != "cgroup" else None, timeout=o.timeout)
        finally:
            if group:
                group.close()
        j = json.loads(u.out) if u.rc == 0 else {}
        wrong = list(faults(u, j, limit, first, experts))
        bad += bool(wrong)
        first = j.get("output_tokens", first) if first is None else first
        print("| %d MiB | %s | %s | %s | %s | %d | %s | %d | %d | %s | %d | %s | %s | %s | %s |" % (
            limit // MiB, context, kind, j["budget_bytes"] // MiB if j else "-", j.get("bound_by", "-"), u.anonymous // MiB,
            j["peak_anonymous_bytes"] // MiB if j else "-", u.rss // MiB, u.data // MiB, u.group_peak // MiB if group else "-", u.swap // MiB,
            j.get("arena_slots", "-"), "%.0f %%" % (100 * j["hit_rate"]) if j else "-", "%.2f" % j["decode_tok_s"] if j else "-",
            "; ".join(wrong) or "none"), flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
