#!/usr/bin/env python3
"""How near decoding in a small budget comes to what bounds it.

    bench/bound.py -m MODEL.gguf [--memory 8GiB] [--all 21GiB] [--rounds 3] [-n 64] [--bin bin/epq-uring] [--prefetch auto,off]

Every round measures, one after the other: decoding with everything in RAM, the disk with the pager's own reads of whole experts (iotest
--rw expert), and decoding within the budget, in a memory cgroup and under RLIMIT_DATA.  Every process answers once before what is
counted: in RAM nothing is read then, and memory that was just mapped is slow on some machines.  The bound is the lower of the speed in
RAM and of the disk's bandwidth divided by the bytes that the token took from it.
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


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--bin", default=os.environ.get("EPQ_BIN", "bin/epq-uring"))
    a.add_argument("--memory", default="8GiB")
    a.add_argument("--all", default="21GiB", help="a budget that holds all experts")
    a.add_argument("--prefetch", default="auto,off")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("-n", type=int, default=64)
    o = a.parse_args()
    print(capped.machine(o.model))
    print("| round | in RAM tok/s | disk GB/s | cap, prefetch | tok/s | MiB/token | bound tok/s | share |\n" + "| --- " * 8 + "|")
    shares = {}
    with tempfile.TemporaryDirectory() as tmp:
        for i in range(o.rounds):
            ram = cells(o, tmp, "--ram", o.all, "--prefetch", "off")[0]["decode_tok_s"]
            disk = json.loads(result([o.bin, "iotest", "--rw", "expert", "-m", o.model, "--ram", o.memory, "--json"]))["expert"]["bw_bytes"]
            for cap in ("cgroup", "rlimit"):
                for c in cells(o, tmp, "--ram", o.memory, "--cap", cap, "--prefetch", o.prefetch):
                    bound = min(ram, disk / (c["ssd_mib_per_token"] * (1 << 20)))
                    arm = "%s, %s" % (cap, c["prefetch"])
                    shares.setdefault(arm, []).append(c["decode_tok_s"] / bound)
                    print("| %d | %.2f | %.2f | %s | %.2f | %.0f | %.2f | %.0f %% |" % (
                        i + 1, ram, disk / 1e9, arm, c["decode_tok_s"], c["ssd_mib_per_token"], bound, 100 * shares[arm][-1]), flush=True)
    for arm, s in shares.items():
        print("%s: median share of the bound %.0f %% (%.0f..%.0f)" % (arm, 100 * statistics.median(s), 100 * min(s), 100 * max(s)))


if __name__ == "__main__":
    main()
