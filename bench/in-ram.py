#!/usr/bin/env python3
"""Everything in RAM: prompts and decoding beside the servers of llama.cpp and ik_llama.cpp, many short turns.

    EPQ_BIN=bin/epq-uring LLAMA_SERVER=.../llama-server IK_SERVER=.../llama-server bench/in-ram.py -m MODEL.gguf --ram 9GiB --together

An arm is a server that stays loaded; a round asks each arm in turn for prompts of -p tokens (one token of answer) and for -n tokens.  All
get the same words, new ones each round, so that nothing is reused.  Times are the client's: tokens of the prompt / time to the whole
answer, and n / (time of n + 1 tokens - time of 1).  Memory of shared machines changes speed by half from one minute to the next:
turns of seconds and ratios within a round see through that, long runs one after the other do not.

Each peer runs once per entry of LLAMA_SETTINGS and IK_SETTINGS (separated by ';'; by default the settings people compare: repacking on
and off).  EPQ_SETTINGS adds arms of ours, e.g. ';--kernels avx2'.  Nobody drafts.  --together keeps all servers loaded (memory must
hold the model once for each); without it each is started anew every round, asked once before it counts, and then --turns times in a row.
Two threads read memory before each round (`kernels --memory`): the share of the bandwidth in decoding is bytes per token x tok/s / that.
"""
import argparse
import contextlib
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True        # no __pycache__ in the tree
import capped  # noqa: E402

WORDS = "ship wind harbour light window book line weather clear rain fog lamp year table page people list keeper evening noon morning row name thick".split()


class Server:
    def __init__(self, name, cmd, port):
        self.name, self.cmd, self.port, self.rows, self.per_word = name, cmd, port, [], None

    @contextlib.contextmanager
    def running(self, o):
        # llama.cpp writes a log to where it is started
        with open(os.devnull, "w") as null, tempfile.TemporaryDirectory() as tmp, subprocess.Popen(self.cmd, cwd=tmp, stdout=null, stderr=None if o.verbose else null) as p:
            try:
                self.wait(p, o.timeout)
                yield
            finally:
                p.terminate()

    def wait(self, p, timeout):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if p.poll() is not None:
                raise SystemExit("%s: exit %d: run it with --verbose to see why" % (shlex.join(self.cmd), p.returncode))
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port, timeout=5)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise SystemExit("%s: not ready after %d s" % (self.name, timeout))

    def ask(self, text, n):
        """-> seconds, usage"""
        body = {"prompt": text, "max_tokens": n, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        r = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % self.port, json.dumps(body).encode(), {"Content-Type": "application/json"})
        start = time.monotonic()
        with urllib.request.urlopen(r, timeout=900) as f:
            u = json.load(f)["usage"]
        if u["completion_tokens"] != n:
            raise SystemExit("%s made %d tokens, not %d" % (self.name, u["completion_tokens"], n))
        return time.monotonic() - start, u

    def measure(self, o, seed):
        """One turn.  Some words make a server answer 500 (bytes of random weights that are no text): then others are tried."""
        for again in range(5):
            try:
                return self.turn(o, seed + 1000 * again)
            except urllib.error.HTTPError as e:
                print("%s: %s" % (self.name, e), file=sys.stderr)
        raise SystemExit("%s refuses every text" % self.name)

    def turn(self, o, seed):
        row = {}
        if self.per_word is None:
            self.per_word = self.ask(words(16, seed), 1)[1]["prompt_tokens"] / 16
        for p in o.prompts:
            s, u = self.ask(words(round(p / self.per_word), seed), 1)
            row["prompt %d" % p] = u["prompt_tokens"] / s
        one, _ = self.ask(words(8, seed + 1), 1)
        all_, _ = self.ask(words(8, seed + 2), o.n + 1)
        row["decode"] = o.n / (all_ - one)
        return row


def words(n, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


def settings(name, default):
    return [shlex.split(s) for s in os.environ.get(name, default).split(";")]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def arms(o):
    if os.environ.get("EPQ_BIN"):
        for extra in settings("EPQ_SETTINGS", ""):
            port = free_port()
            yield Server(" ".join(["epq-uring"] + extra), [os.path.abspath(os.environ["EPQ_BIN"]), "serve", "-m", o.model, "--port", str(port), "--ram", o.ram, "-c", "1024",
                         "--threads", str(o.threads), "--draft-ngram", "off", "--mtp", "off", "--no-warm"] + extra, port)
    for name, binary, default in ("llama.cpp", "LLAMA_SERVER", "--load-mode mmap;--load-mode mmap --no-repack"), ("ik_llama.cpp", "IK_SERVER", "-rtr;;-no-fmoe"):
        if os.environ.get(binary):
            for extra in settings(binary.replace("SERVER", "SETTINGS"), default):
                port = free_port()
                yield Server(" ".join([name] + extra), [os.path.abspath(os.environ[binary]), "-m", o.model, "--port", str(port), "-c", "1024", "-t", str(o.threads), "-np", "1"] + extra, port)


def bandwidth(o):
    if not os.environ.get("EPQ_BIN"):
        return 0
    return json.loads(subprocess.check_output([os.environ["EPQ_BIN"], "kernels", "--memory", "--json"], stderr=subprocess.DEVNULL))["memory_gb_s"]


def turn(arm, o, seed):
    row = arm.measure(o, seed)
    arm.rows.append(row)
    print("%s %-38s %s" % (time.strftime("%H:%M:%S"), arm.name, "  ".join("%s %.2f" % x for x in sorted(row.items()))), flush=True)


def main():
    a = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--ram", default="21GiB", help="ours: must hold all experts")
    a.add_argument("-p", dest="prompts", default="128,512")
    a.add_argument("-n", type=int, default=64)
    a.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--rounds", type=int, default=10)
    a.add_argument("--together", action="store_true", help="keep all servers loaded")
    a.add_argument("--turns", type=int, default=1, help="of one server in a row, without --together")
    a.add_argument("--timeout", type=int, default=900, help="seconds for a server to load")
    a.add_argument("--verbose", action="store_true")
    o = a.parse_args()
    o.model = os.path.abspath(o.model)
    o.prompts = [int(x) for x in o.prompts.split(",")]
    todo, speeds = list(arms(o)), []
    with contextlib.ExitStack() as stack:
        if o.together:
            for s in todo:
                stack.enter_context(s.running(o))
                s.measure(o, -1)
        for r in range(o.rounds):
            speeds.append(bandwidth(o))
            for s in todo[r % len(todo):] + todo[:r % len(todo)]:
                if o.together:
                    turn(s, o, 3 * r)
                    continue
                with s.running(o):
                    s.measure(o, -1)
                    for k in range(o.turns):
                        turn(s, o, 3 * (r * o.turns + k))
    report(todo, speeds, o)


def report(todo, speeds, o):
    print("\nmachine  ", capped.machine(o.model))
    what = ["prompt %d" % p for p in o.prompts] + ["decode"]
    print("%d rounds of %d; tok/s: median (least..most), ours / its: median of the rounds' ratios (quartiles)\n" % (o.rounds, 1 if o.together else o.turns))
    print("| engine | " + " | ".join(what) + " |\n| " + "--- | " * (len(what) + 1))
    for s in todo:
        cells = []
        for w in what:
            v = [x[w] for x in s.rows]
            cell = "%.1f (%.1f..%.1f)" % (statistics.median(v), min(v), max(v))
            if s is not todo[0]:
                q = statistics.quantiles([m[w] / x[w] for m, x in zip(todo[0].rows, s.rows)], n=4, method="inclusive") if len(v) > 1 else [0] * 3
                cell += ", x%.2f (%.2f..%.2f)" % (q[1], q[0], q[2])
            cells.append(cell)
        print("| %s | %s |" % (s.name, " | ".join(cells)))
    print("\nmemory, %d threads: median %.1f GB/s (%.1f..%.1f)" % (o.threads, statistics.median(speeds), min(speeds), max(speeds)))
    for s in todo:
        print(shlex.join([os.path.basename(s.cmd[0])] + s.cmd[1:]))


if __name__ == "__main__":
    main()
