#!/usr/bin/env python3
"""A language model that learns while its service is killed, over and over. TAP.

examples/charlm.c saves every 10 steps and begins from the last save. Whatever is killed when (the
daemon, in the midst of steps and of saves; the client; both), each loss, printed with all its bits, is
that of a run that nobody disturbed, and no save that was acknowledged is lost. A step whose reply is
lost with the connection is sent again, and taken once. Needs nothing but Python.
"""
import glob
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from ctl_rig import BUILD, SOURCE, Daemon, Tap

CHARLM = os.path.join(BUILD, "examples", "charlm")
SMALL = bool(os.environ.get("FP8D_TEST_SMALL"))
STEPS = 60 if SMALL else 200
KILLS = 6 if SMALL else 24
STEP_REQUEST = 44
HEADER = struct.Struct("<4sHHQIHHQ")

# --- the run ---


def write_text(folder):
    path = os.path.join(folder, "text")
    with open(path, "wb") as out:
        for name in [os.path.join(SOURCE, "LICENSE"), *sorted(glob.glob("/usr/share/common-licenses/*"))]:
            with open(name, "rb") as f:
                out.write(f.read())
    return path


class Charlm:
    """A client that runs, and what it has said."""

    def __init__(self, text, sock, checkpoint=None):
        words = [CHARLM, text, str(STEPS), "fp8d", sock] + ([checkpoint] if checkpoint else [])
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self):
        """Exit code and stderr, once it has ended."""
        err = self.process.stderr.read()
        self.reader.join()
        return self.process.wait(timeout=120), err

    def kill(self):
        self.process.kill()


def losses(lines):
    """{step: what is printed of its loss}; a step twice only if it is the same."""
    found = {}
    for line in lines:
        m = re.fullmatch(r"step +(\d+)  loss (\S+)", line)
        if m and found.setdefault(int(m[1]), m[2]) != m[2]:
            found[int(m[1])] = f"{found[int(m[1])]} and then {m[2]}"
    return found


def numbers(word, lines):
    return [int(m[1]) for m in (re.fullmatch(word + r" (\d+)", line) for line in lines) if m]


# --- cases ---


def undisturbed(tap, text, folder, daemon):
    run = Charlm(text, daemon.sock, os.path.join(folder, "calm"))
    code, err = run.wait()
    tap.is_("the undisturbed run ends well, with a save every ten steps",
            code == 0 and not err and numbers("saved", run.lines) == list(range(10, STEPS + 1, 10)), err)
    files = sorted(os.path.basename(p) for p in glob.glob(os.path.join(folder, "calm*")))
    tap.is_("it leaves its last checkpoint alone",
            files == [f"calm-{STEPS:06d}.client", f"calm-{STEPS:06d}.safetensors"], files)
    return losses(run.lines)


def wait_for(run, lines):
    """Until so many more lines are there, or it ended."""
    until = len(run.lines) + lines
    end = time.monotonic() + 60
    while len(run.lines) < until and run.process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)


def disturb(draw, run, daemon, step_s):
    """Somebody is killed at a random moment: amid steps, or (half of the time) about a save."""
    wait_for(run, draw.randrange(1, 15))
    if draw.random() < 0.5:
        while run.process.poll() is None and not re.match(r"step +\d+0 ", run.lines[-1] if run.lines else ""):
            time.sleep(0.0005)
    time.sleep(draw.random() * step_s)
    victim = draw.choice(["daemon", "daemon", "client", "both"])
    if victim != "client":
        daemon.kill()
    if victim != "daemon":
        run.kill()
    code, err = run.wait()
    if victim == "client":
        daemon.kill()
    return victim, code, err


def killed(tap, text, folder, daemon, want, step_s):
    draw = random.Random(20261130)
    checkpoint = os.path.join(folder, "run")
    all_lines, victims, bad, last_saved, kills, ended = [], [], [], 0, 0, None
    for _ in range(10 * KILLS):
        run = Charlm(text, daemon.sock, checkpoint)
        if kills < KILLS:
            victim, code, err = disturb(draw, run, daemon, step_s)
            kills += 1
            victims.append(victim)
            daemon.start()
        else:
            code, err = run.wait()
        resumed = numbers("resumed after", run.lines)
        if (resumed[0] if resumed else 0) < last_saved and run.lines:
            bad.append(f"resumed {resumed}, but {last_saved} was saved")
        last_saved = max([last_saved, *numbers("saved", run.lines)])
        all_lines += run.lines
        if code == 0:
            ended = err
            if kills >= KILLS:
                break
            for old in glob.glob(checkpoint + "*"):  # done before all kills: again, from the start
                os.unlink(old)
            last_saved = 0
    print(f"# {kills} kills: {', '.join(f'{victims.count(v)} {v}' for v in sorted(set(victims)))}",
          flush=True)
    tap.is_(f"{KILLS} kills, and the run came to its end", kills == KILLS and ended == "", ended)
    tap.is_("no save that was acknowledged was lost", not bad, bad)
    got = losses(all_lines)
    odd = {n: (got.get(n), want[n]) for n in want if got.get(n) != want[n]}
    tap.is_("every loss has the bits of the undisturbed run", not odd and len(got) == STEPS, odd)


# --- steps whose reply is lost ---


class Cutter:
    """Between client and daemon: cuts the connection at chosen Step requests."""

    def __init__(self, folder, daemon, cuts):
        self.path, self.daemon, self.cuts = os.path.join(folder, "cut.sock"), daemon.sock, dict(cuts)
        self.steps = 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(4)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(self.daemon)
            self.pass_on(client, server)
            client.close()
            server.close()

    def pass_on(self, client, server):
        """One request, its one reply, and so on: charlm waits for each. Until a cut, or the end."""
        while True:
            head, body = self.frame(client)
            if head is None:
                return
            cut = None
            if HEADER.unpack(head)[2] == STEP_REQUEST:
                self.steps += 1
                cut = self.cuts.pop(self.steps, None)
            if cut == "before":
                return
            server.sendall(head + body)
            if cut == "at once":
                return
            head, body = self.frame(server)
            if head is None or cut == "after":
                return
            client.sendall(head + body)

    @staticmethod
    def take(sock, n):
        data = b""
        while len(data) < n:
            part = sock.recv(n - len(data))
            if not part:
                return None
            data += part
        return data

    def frame(self, sock):
        head = self.take(sock, HEADER.size)
        if head is None:
            return None, None
        meta, payload = HEADER.unpack(head)[4], HEADER.unpack(head)[7]
        return head, self.take(sock, meta + payload)


def cut_off(tap, text, folder, daemon, want):
    """Before the service sees the step, at once behind it, and with its reply on the way."""
    cuts = {3: "before", 9: "after", 16: "at once", 22: "after", 30: "before", 41: "at once"}
    cutter = Cutter(folder, daemon, cuts)
    run = Charlm(text, cutter.path)
    code, err = run.wait()
    said = dict(re.findall(r"step (\d+) sent again: (.*)", err))
    tap.is_("connections lost at six steps: the run comes to its end, each step sent again once",
            code == 0 and len(said) == 6 and not cutter.cuts, f"{code}\n{err}")
    # the cutter counts what is sent: a step that was sent again counts twice
    order = [said[n] for n in sorted(said, key=int)]
    taken = {"before": {"taken now"}, "after": {"it was taken before"},
             "at once": {"taken now", "it was taken before"}}
    tap.is_("taken now if the service had not seen it, repeated if it had",
            len(order) == 6 and all(s in taken[c] for s, c in zip(order, cuts.values())), err)
    got = {n: float(x) for n, x in losses(run.lines).items()}
    odd = {n: (got.get(n), x) for n, x in want.items() if f"{float(x):.5f}" != f"{got.get(n, 0):.5f}"}
    tap.is_("every step was taken once: the losses are those of the undisturbed run", not odd, odd)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(folder).start()
        try:
            text = write_text(folder)
            begun = time.monotonic()
            want = undisturbed(tap, text, folder, daemon)
            step_s = (time.monotonic() - begun) / STEPS
            tap.is_("it printed every step", sorted(want) == list(range(1, STEPS + 1)), len(want))
            cut_off(tap, text, folder, daemon, want)
            killed(tap, text, folder, daemon, want, step_s)
            tap.is_("nothing but the last checkpoint is left",
                    len(glob.glob(os.path.join(folder, "run*"))) == 2, os.listdir(folder))
        finally:
            if daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
                tap.is_("the daemon stops clean", daemon.process.wait(timeout=60) == 0)
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
