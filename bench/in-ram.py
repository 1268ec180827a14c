#!/usr/bin/env python3
"""Everything in RAM: prompts and decoding beside llama.cpp and ik_llama.cpp, N interleaved rounds.

    EPQ_BIN=bin/epq-uring LLAMA_BENCH=.../llama-bench IK_BENCH=.../llama-bench bench/in-ram.py -m MODEL.gguf --ram 21GiB

Each peer runs as its own llama-bench, once per entry of LLAMA_SETTINGS and IK_SETTINGS (separated by ';'; the defaults are the two settings
people compare: repacking on and off).  epq-uring runs `bench --warm`: one pass that brings the experts in, then the pass that counts; nobody drafts.
EPQ_SETTINGS adds arms of ours, e.g. ';--kernels avx2'.  Memory must hold the model once; nothing else may run.  Before each round two
threads read memory (`kernels --memory`): the share of the bandwidth in decoding is bytes per token x tok/s / that.
"""
import argparse
import json
import os
import shlex
import statistics
import sys
import time

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402


def settings(name, default):
    return [shlex.split(s) for s in os.environ.get(name, default).split(";")]


def arms(o):
    """(name, function -> {what: tok/s})"""
    if os.environ.get("EPQ_BIN"):
        for extra in settings("EPQ_SETTINGS", ""):
            yield " ".join(["epq-uring"] + extra), lambda extra=extra: epq(o, extra)
    for name, binary, default in ("llama.cpp", "LLAMA_BENCH", "-lm mmap;-lm mmap -ot .*=CPU"), ("ik_llama.cpp", "IK_BENCH", "-rtr 1 -fmoe 1;-rtr 0 -fmoe 0"):
        if os.environ.get(binary):
            for extra in settings(binary.replace("BENCH", "SETTINGS"), default):
                yield " ".join([name] + extra), lambda b=os.environ[binary], extra=extra: peer(o, b, extra)


def checked(cmd, o):
    u = capped.run(cmd, timeout=o.timeout)
    if u.rc:
        raise SystemExit("%s: exit %d: %s" % (shlex.join(cmd), u.rc, u.last()))
    return u


def epq(o, extra):
    row = {}
    for p in o.prompts:
        n = o.n if p == o.prompts[0] else 1
        u = checked([os.environ["EPQ_BIN"], "bench", "-m", o.model, "-p", str(p), "-n", str(n), "-r", "1", "--warm", "-c", "1024", "--ram", o.ram, "--draft-ngram", "off", "--mtp", "off", "--json", "-"] + extra, o)
        c = json.loads(u.out)["cells"][0]
        row["prompt %d" % p] = c["prompt_tok_s"]
        if n > 1:
            row["decode"] = c["decode_tok_s"]
            if c["hit_rate"] < 0.99:
                print("note: only %.1f %% hits: --ram does not hold all experts in use" % (100 * c["hit_rate"]))
    return row


def peer(o, binary, extra):
    for f in capped.shards(o.model):
        capped.warm(f)
    u = checked([binary, "-m", o.model, "-p", ",".join(map(str, o.prompts)), "-n", str(o.n), "-t", str(o.threads), "-r", "1", "-o", "json"] + extra, o)
    return {"decode" if x["n_gen"] else "prompt %d" % x["n_prompt"]: x["avg_ts"] for x in json.loads(u.out[u.out.index("["):])}


def bandwidth(o):
    u = checked([os.environ["EPQ_BIN"], "kernels", "--memory", "--json"], o)
    return json.loads(u.out)["memory_gb_s"]


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--ram", default="21GiB")
    a.add_argument("-p", dest="prompts", default="128,512")
    a.add_argument("-n", type=int, default=48)
    a.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--timeout", type=int, default=900)
    o = a.parse_args()
    o.prompts = [int(x) for x in o.prompts.split(",")]
    rows, speeds = {}, []
    for r in range(o.rounds):
        todo = list(arms(o))
        for name, run in todo[r % len(todo):] + todo[:r % len(todo)]:
            if os.environ.get("EPQ_BIN"):
                speeds.append(bandwidth(o))
            row = run()
            rows.setdefault(name, []).append(row)
            print("%s round %d %-34s %s; memory %.1f GB/s" % (time.strftime("%H:%M:%S"), r + 1, name,
                  "  ".join("%s %.2f" % x for x in sorted(row.items())), speeds[-1] if speeds else 0), flush=True)
    print("\nmachine  ", capped.machine(o.model))
    what = ["prompt %d" % p for p in o.prompts] + ["decode"]
    print("| engine | " + " | ".join(what) + " |\n| " + "--- | " * (len(what) + 1))
    ours = next(iter(rows.values()))
    for name, rs in rows.items():
        cells = []
        for w in what:
            v = [x[w] for x in rs]
            pairs = statistics.median(m[w] / x[w] for m, x in zip(ours, rs))
            cells.append("%.1f (%.1f..%.1f)%s" % (statistics.median(v), min(v), max(v), "" if rs is ours else " ours x%.2f" % pairs))
        print("| %s | %s |" % (name, " | ".join(cells)))
    if speeds:
        print("memory, %d threads: median %.1f GB/s (%.1f..%.1f)" % (o.threads, statistics.median(speeds), min(speeds), max(speeds)))


if __name__ == "__main__":
    main()
