#!/usr/bin/env python3
"""epq-uring beside other engines: N interleaved rounds on one machine, all in the same memory cgroup (in-ram.py: all in RAM).

    EPQ_BIN=bin/epq-uring LLAMA_COMPLETION=... IK_CLI=... BMOE_CLI=... bench/peers.py -m MODEL.gguf --memory 8GiB

An arm takes part when its variable names a binary; its settings can be changed by NAME_ARGS (EPQ_ARGS, LLAMA_ARGS, IK_ARGS, BMOE_ARGS).
    EPQ_BIN            epq-uring
    LLAMA_COMPLETION   llama-completion of llama.cpp
    IK_CLI             llama-cli of ik_llama.cpp
    BMOE_CLI           bmoe-cli of BigMoeOnEdge

One prompt of plain English, the same for all, then -n tokens, greedy, the end token ignored: real routes, what paging needs.  With
random weights the programs' texts part after a while; each is then measured on its own routes.

In a group every program starts with the model's pages thrown out of the page cache, because pages that someone outside the group has
read cost the group nothing.  In RAM the file is read once before each run of a program that maps it.  --read-ahead sets the device's
read-ahead for the run (KiB): mmap with a device's default of several MiB reads ten times what it needs.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402

TEXT = """In the morning the ships leave the harbour and by the evening most of them are back, because the wind turns at noon and
nobody likes to row. The old keeper of the light counts them from his window. He writes the names in a book, one line for each,
and the weather beside it: clear, rain, fog. When a ship does not come back he lights the second lamp and waits. Twice in thirty
years he waited in vain. The book is now so thick that it lies on a table of its own, and the first pages can hardly be read,
yet people come from far away to see it. They ask him what he thinks when he reads it, and he says that he never does: a list is
written so that one may forget. """


class Arm:
    def __init__(self, name, variable, args, command, parse, maps):
        self.name, self.bin, self.maps = name, os.environ.get(variable), maps
        self.args, self.command, self.parse = shlex.split(os.environ.get(args, "")), command, parse
        self.rows = []


def number(pattern, text):
    m = re.search(pattern, text)
    return float(m[1].replace(",", "")) if m else None


def parse_epq(u):
    j = json.loads(u.out)
    return {"decode": j["decode_tok_s"], "prompt": j["prompt_tok_s"], "prompt_tokens": j["prompt_tokens"], "hit": j["hit_rate"],
            "mib_token": j["ssd_mib_per_token"], "slots": j["arena_slots"], "backend": j["backend"], "bound_by": j["bound_by"]}


def parse_timings(u):
    """The timing lines of llama.cpp and what descends from it."""
    t = u.err + u.out
    return {"prompt": number(r"prompt eval time.*?([\d.]+) tokens per second", t),
            "decode": number(r"(?<!prompt )\beval time.*?([\d.]+) tokens per second", t),
            "prompt_tokens": number(r"prompt eval time\s*=\s*[\d.]+ ms\s*/\s*(\d+) tokens", t)}


def parse_bmoe(u):
    t = u.out + u.err
    return {"decode": number(r"generation:.*\(([\d.]+) tok/s\)", t), "prompt": number(r"prefill:.*?\(([\d.]+) tok/s\)", t),
            "prompt_tokens": number(r"prefill: (\d+) tokens", t), "mib_token": number(r"\(([\d.]+) MiB/token\)", t),
            "hit": (number(r"moe-cache: ([\d.]+)% hit", t) or 0) / 100}


def arms_of(o):
    common = ["-m", o.model, "-n", str(o.n), "-t", str(o.threads), "-c", str(o.context), "--temp", "0"]
    completion = common + ["-f", o.prompt_file, "--ignore-eos"]
    ram = ["--ram", str(o.limit)] if o.limit else []
    cache = str(o.bmoe_cache or (o.limit >> 20) * 7 // 10)
    llama = ["-no-cnv", "--no-warmup", "--no-display-prompt", "--perf", "--load-mode", "mmap"] + (["--no-repack"] if o.limit else [])
    ik = ["--no-warmup", "--no-display-prompt"] + (["--defer-experts"] if o.limit else ["-rtr"])
    yield Arm("epq-uring", "EPQ_BIN", "EPQ_ARGS", ["run"] + completion + ["--no-chat", "--no-warm", "--draft-ngram", "off", "--mtp", "off", "--json"] + ram, parse_epq, False)
    yield Arm("llama.cpp", "LLAMA_COMPLETION", "LLAMA_ARGS", completion + llama, parse_timings, True)
    yield Arm("ik_llama.cpp", "IK_CLI", "IK_ARGS", completion + ik, parse_timings, True)
    if o.limit:
        yield Arm("BigMoeOnEdge", "BMOE_CLI", "BMOE_ARGS", common + ["-p", o.text, "--ubatch", "512", "--moe-stream", "--overlap",
                  "--dense-weights", "anon", "--io-threads", "4", "--cache-mb", cache], parse_bmoe, False)


def measure(arm, o, group):
    """One run -> a row; a run that failed is a row with its reason."""
    if group:
        for f in capped.shards(o.model):
            capped.drop(f)
    elif arm.maps:
        for f in capped.shards(o.model):
            capped.warm(f)
    quiet = capped.wait_idle(o.idle, o.idle_wait) if o.idle else None
    left = sum(capped.cached(f) or 0 for f in capped.shards(o.model))
    load = os.getloadavg()[0]
    u = capped.run([arm.bin] + arm.command + arm.args, group=group, timeout=o.timeout)
    row = {"load": load, "seconds": u.seconds, "device_read": u.device_read, "anonymous": u.anonymous, "rss": u.rss, "swap": u.swap,
           "group_peak": u.group_peak, "cached_before": left, "quiet": quiet}
    if u.rc != 0:
        why = "over %d s" % o.timeout if u.late else "killed by the memory limit" if u.kills else "exit %d: %s" % (u.rc, u.last())
        return {**row, "failed": why}
    try:
        row.update(arm.parse(u))
    except (ValueError, KeyError, IndexError) as e:
        row["failed"] = "cannot read its figures (%s): %s" % (e, u.last())
    if u.stopped:
        row["failed"] = "stood still for %.0f s: somebody stopped it" % u.stopped
    if row.get("decode") is None and row.get("prompt") is None:
        row.setdefault("failed", "no figures in its output: " + u.last())
    return row


def values(arm, key):
    return [r[key] for r in arm.rows if "failed" not in r and r.get(key) is not None]


def spread(v, form="%.2f"):
    if not v:
        return "-"
    m = statistics.median(v)
    return (form + " (" + form + ".." + form + ", %.0f %%)") % (m, min(v), max(v), 100 * (max(v) - min(v)) / m if m else 0)


def ratio(ours, arm, key):
    """Median over the rounds of ours / theirs, both of the same round."""
    pairs = [a[key] / b[key] for a, b in zip(ours.rows, arm.rows) if a.get(key) and b.get(key) and "failed" not in a and "failed" not in b]
    return "%.2f" % statistics.median(pairs) if pairs else "-"


def report(arms, o):
    print("\nmachine  ", capped.machine(o.model))
    print("memory   ", "cgroup of %d MiB" % (o.limit >> 20) if o.limit else "all in RAM", "" if o.read_ahead is None else "; read-ahead %d KiB" % o.read_ahead)
    print("rounds    %d, interleaved; %d threads; load average at the start of a run %.1f..%.1f" % (
        o.rounds, o.threads, min(r["load"] for a in arms for r in a.rows), max(r["load"] for a in arms for r in a.rows)))
    busy = sum(r["quiet"] is False for a in arms for r in a.rows)
    if busy:
        print("warning   %d runs began while others used the CPUs: programs that spin at barriers lose far more by that than others" % busy)
    print("\n| arm | decode tok/s: median (min..max, spread) | prompt tok/s | prompt tokens | hits | MiB/token | device GiB/run | group peak MiB | ours / its, decode | prompt |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for a in arms:
        ours = next((x for x in arms if x.name == a.name.replace(a.name.split()[0], "epq-uring")), None)
        mid = {k: statistics.median(values(a, k)) if values(a, k) else None for k in ("prompt_tokens", "hit", "mib_token")}
        print("| %s | %s | %s | %s | %s | %s | %.1f | %s | %s | %s |" % (
            a.name, spread(values(a, "decode")), spread(values(a, "prompt"), "%.1f"),
            "%d" % mid["prompt_tokens"] if mid["prompt_tokens"] else "-", "%.0f %%" % (100 * mid["hit"]) if mid["hit"] is not None else "-",
            "%.0f" % mid["mib_token"] if mid["mib_token"] is not None else "-", statistics.median(r["device_read"] for r in a.rows) / (1 << 30),
            max(r["group_peak"] for r in a.rows) >> 20 or "-",
            ratio(ours, a, "decode") if ours and ours is not a else "", ratio(ours, a, "prompt") if ours and ours is not a else ""))
    print()
    for a in arms:
        print("%-18s %s" % (a.name, shlex.join([os.path.basename(a.bin)] + [os.path.basename(x) if x == o.model else "PROMPT" if x in (o.prompt_file, o.text) else x
                                                                            for x in a.command + a.args])))
    for a in arms:
        for i, r in enumerate(a.rows):
            if "failed" in r:
                print("%s, round %d: %s" % (a.name, i + 1, r["failed"]))


def options():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--memory", default="8GiB", help="size of the memory cgroup, or 'ram' for none (default 8GiB)")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("-n", type=int, default=64, help="tokens to decode (default 64)")
    a.add_argument("-f", dest="prompt", help="file with the prompt (default: a paragraph of plain English)")
    a.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("-c", "--context", type=int, default=2048)
    a.add_argument("--read-ahead", type=int, help="KiB, for the time of the run (needs root); 128 is a good value for programs that use mmap")
    a.add_argument("--bmoe-cache", type=int, help="BigMoeOnEdge's cache in MiB (default: 70 %% of the group)")
    a.add_argument("--only", help="arms whose names begin with one of these words, e.g. 'epq,ik'")
    a.add_argument("--timeout", type=int, default=900, help="seconds for one run")
    a.add_argument("--idle", type=int, help="before each run wait until the CPUs are idle for this share in percent")
    a.add_argument("--idle-wait", type=int, default=600, help="but at most this many seconds (default 600)")
    a.add_argument("--json", help="write all rows to this file")
    o = a.parse_args()
    o.limit = None if o.memory == "ram" else capped.size(o.memory)
    o.text = open(o.prompt).read() if o.prompt else " ".join(TEXT.split())
    if o.rounds < 1:
        a.error("--rounds must be at least 1")
    return o


def main():
    o = options()
    with tempfile.TemporaryDirectory() as tmp:
        o.prompt_file = os.path.join(tmp, "prompt.txt")
        with open(o.prompt_file, "w") as f:
            f.write(o.text)
        arms = [a for a in arms_of(o) if a.bin and (not o.only or a.name.startswith(tuple(o.only.split(","))))]
        if not arms:
            sys.exit("no arm: set EPQ_BIN, LLAMA_COMPLETION, IK_CLI or BMOE_CLI (see --help)")
        group = capped.Group(o.limit) if o.limit else None
        try:
            with capped.ReadAhead(o.model, o.read_ahead):
                for i in range(o.rounds):
                    for a in arms[i % len(arms):] + arms[:i % len(arms)]:           # nobody is always first
                        a.rows.append(measure(a, o, group))
                        r = a.rows[-1]
                        print("%s round %d %-18s %s" % (time.strftime("%H:%M:%S"), i + 1, a.name, r.get("failed") or "decode %s prompt %s tok/s, load %.1f, %.0f s" % (
                            "%.2f" % r["decode"] if r.get("decode") else "-", "%.1f" % r["prompt"] if r.get("prompt") else "-", r["load"], r["seconds"])), flush=True)
        finally:
            if group:
                group.close()
        report(arms, o)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"machine": capped.machine(o.model), "argv": sys.argv[1:],
                       "arms": [{"name": a.name, "command": [a.bin] + a.command + a.args, "rows": a.rows} for a in arms]}, f, indent=1)
    sys.exit(any("failed" in r for a in arms for r in a.rows))


if __name__ == "__main__":
    main()
