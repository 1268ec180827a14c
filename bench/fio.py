#!/usr/bin/env python3
"""iotest beside fio: the same file, block sizes and depths, in turns; one table from both programs' JSON.

    bench/fio.py FILE [--bs 128k,512k] [--iodepth 1,4,16] [--rounds 5] [--runtime 1] [--bin bin/epq-uring] [--hugetlb]

Rows: fio and iotest with registered memory on 4 KiB pages, like for like; iotest on transparent huge pages, which fio does not have; with
--hugetlb also fio on explicit huge pages (--iomem=shmhuge; sysctl vm.nr_hugepages must be large enough).  The ratio is the median of the
pairs' ratios.  Exit status 1 when iotest has less than 97 % of fio's bandwidth or more than 1.3 times its CPU per byte, like for like.

How far 4 KiB pages are scattered decides how many segments a read has, and with it up to half of the bandwidth: run as root, memory is
compacted before each program, so that both find it in the same state.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def compact():
    """Whether the system has put its free memory together."""
    try:
        with open("/proc/sys/vm/compact_memory", "w") as f:
            f.write("1")
        return True
    except OSError:
        return False


def job(cmd):
    """bandwidth in GB/s, CPU in s/GB, p50 and p99 in us: the same fields of fio's JSON and of iotest's."""
    compact()
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode != 0 or "{" not in r.stdout:
        sys.exit("%s: %s" % (cmd[0], (r.stderr or r.stdout).strip()[:300]))
    j = json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]
    read = j["read"]
    seconds, gb = read["runtime"] / 1e3, read["io_bytes"] / 1e9
    p = read["clat_ns"]["percentile"]
    return read["bw_bytes"] / 1e9, (j["usr_cpu"] + j["sys_cpu"]) / 100 * seconds / gb, p["50.000000"] / 1e3, p["99.000000"] / 1e3


def arms(o, bs, depth):
    fio = ["fio", "--name=x", "--filename=" + o.file, "--readonly", "--rw=randread", "--bs=" + bs, "--iodepth=" + depth, "--ioengine=io_uring", "--direct=1",
           "--fixedbufs=1", "--registerfiles=1", "--runtime=%d" % o.runtime, "--time_based", "--output-format=json"]
    own = [o.bin, "iotest", o.file, "--rw", "randread", "--bs", bs, "--iodepth", depth, "--backend", "ring", "--direct", "1", "--runtime", "%d" % o.runtime,
           "--output-format", "json"]
    list_ = {"fio, 4k pages": fio, "iotest, 4k pages": own + ["--hugepages", "0"], "iotest, huge pages": own + ["--hugepages", "1"]}
    if o.hugetlb:
        list_["fio, hugetlb"] = fio + ["--iomem=shmhuge"]
    return list_


def ratio(rows, a, b, column):
    return statistics.median(x[column] / y[column] for x, y in zip(rows[a], rows[b]))


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("file")
    a.add_argument("--bs", default="512k")
    a.add_argument("--iodepth", default="1,4,16")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--runtime", type=int, default=1, help="seconds of each program: fio takes no parts of one")
    a.add_argument("--bin", default=os.environ.get("EPQ_BIN", "bin/epq-uring"))
    a.add_argument("--hugetlb", action="store_true")
    o = a.parse_args()
    bad = 0
    print("memory %s before each program\n" % ("compacted" if compact() else "not compacted (for want of root)"))
    print("| bs | iodepth | what | GB/s: median (min..max) | CPU s/GB | p50 us | p99 us |\n" + "| --- " * 7 + "|")
    for bs in o.bs.split(","):
        for depth in o.iodepth.split(","):
            todo = arms(o, bs, depth)
            rows = {name: [] for name in todo}
            for r in range(o.rounds):
                for name in list(todo) if r % 2 == 0 else reversed(todo):
                    rows[name].append(job(todo[name]))
            for name, got in rows.items():
                bw, cpu, p50, p99 = zip(*got)
                print("| %s | %s | %s | %.2f (%.2f..%.2f) | %.4f | %.0f | %.0f |" % (
                    bs, depth, name, statistics.median(bw), min(bw), max(bw), statistics.median(cpu), statistics.median(p50), statistics.median(p99)), flush=True)
            pairs = [("iotest, 4k pages", "fio, 4k pages")] + ([("iotest, huge pages", "fio, hugetlb")] if o.hugetlb else [])
            for own, fio in pairs:
                fast, cpu = ratio(rows, own, fio, 0), ratio(rows, own, fio, 1)
                bad += fast < 0.97 or cpu > 1.3
                print("| %s | %s | %s / %s | %.3f | %.2f | | |" % (bs, depth, own, fio, fast, cpu), flush=True)
            print("| %s | %s | huge / 4k pages, iotest | %.2f | %.2f | | |" % (
                bs, depth, ratio(rows, "iotest, huge pages", "iotest, 4k pages", 0), ratio(rows, "iotest, huge pages", "iotest, 4k pages", 1)), flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
