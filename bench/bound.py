#!/usr/bin/env python3
"""How near decoding in a small budget comes to what bounds it.

    bench/bound.py -m MODEL.gguf [--memory 8GiB] [--rounds 3] [-n 64] [--bin bin/epq-uring] [--prefetch auto,off]

Every round measures, one after the other: the disk with the pager's own reads of whole experts, a token when no read takes any time, and
one while the disk reads all the time (iotest --rw expert has all three); then decoding within the budget, in a memory cgroup and under
RLIMIT_DATA, each process after one answer that does not count.  The bound is the lower of the speed without reading and of the disk's
bandwidth divided by the bytes that the token took from it.  No machine reaches it whose disk takes CPU time or memory bandwidth from
computing: the last column is the share of the speed beside a disk that never rests.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402


def result(cmd):
    u = capped.run(cmd)
    if u.rc != 0:
        sys.exit("%s: %s" % (cmd[1], u.last()))
    return u.out


def cells(o, tmp, *args):
    """The cells of one bench."""
    file = os.path.join(tmp, "bench.json")
    result([o.bin, "bench", "-m", o.model, "-p", "64", "-n", str(o.n), "-r", "1", "--warm", "--draft-ngram", "off", "--mtp", "off", "--json", file, *args])
    with open(file) as f:
        return json.load(f)["cells"]


def disk(o):
    return json.loads(result([o.bin, "iotest", "--rw", "expert", "-m", o.model, "--ram", o.memory, "--json"]))["expert"]


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--bin", default=os.environ.get("EPQ_BIN", "bin/epq-uring"))
    a.add_argument("--memory", default="8GiB")
    a.add_argument("--prefetch", default="auto,off")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("-n", type=int, default=64)
    o = a.parse_args()
    print(capped.machine(o.model))
    columns = ["round", "nothing read, tok/s", "reading all the time", "disk GB/s", "cap, prefetch", "tok/s", "MiB/token", "bound", "share", "of reading all the time"]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    shares = {}
    disk(o)      # the first process that fills so much memory is slow on some machines
    with tempfile.TemporaryDirectory() as tmp:
        for i in range(o.rounds):
            e = disk(o)
            alone, beside = 1 / e["compute_s_per_token"], 1 / e["compute_beside_reads_s_per_token"]
            for cap in ("cgroup", "rlimit"):
                for c in cells(o, tmp, "--ram", o.memory, "--cap", cap, "--prefetch", o.prefetch):
                    speed, bound = c["decode_tok_s"], min(alone, e["bw_bytes"] / (c["ssd_mib_per_token"] * (1 << 20)))
                    arm = "%s, %s" % (cap, c["prefetch"])
                    shares.setdefault(arm, []).append((100 * speed / bound, 100 * speed / beside))
                    print("| %d | %.2f | %.2f | %.2f | %s | %.2f | %.0f | %.2f | %.0f %% | %.0f %% |" % (
                        i + 1, alone, beside, e["bw_bytes"] / 1e9, arm, speed, c["ssd_mib_per_token"], bound, *shares[arm][-1]), flush=True)
    for arm, pairs in shares.items():
        for what, s in zip(("the bound", "reading all the time"), zip(*pairs)):
            print("%s: median share of %s %.0f %% (%.0f..%.0f)" % (arm, what, statistics.median(s), min(s), max(s)))


if __name__ == "__main__":
    main()
