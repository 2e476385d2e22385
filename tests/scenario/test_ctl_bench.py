#!/usr/bin/env python3
"""fp8ctl bench against a running fp8d: keys, figures that must agree, what is left behind. TAP."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from ctl_rig import Daemon, Tap

KEYS = {"fp8ctl_json", "backend", "device", "layer", "dtype", "mode", "clients", "depth", "flop",
        "planes"}
PLANE_KEYS = {"plane", "requests", "seconds", "forwards_per_s", "latency_us", "device_requests",
              "device_us", "overhead_us", "waiting_us", "payload_bytes", "payload_gb_per_s", "tflops",
              "device_tflops"}
SPREAD_KEYS = {"p50", "p90", "p99", "max"}
SMALL = ["--layer", "8,32,48"]

# --- helpers ---

tap = Tap()


def models(daemon):
    return json.loads(daemon.must("--json", "models"))["models"]


def status_of(daemon):
    return json.loads(daemon.must("--json", "status"))


def nothing_left(daemon, name):
    """No model and no tensor; what a connection held goes when the server sees its end."""
    for _ in range(100):
        status = status_of(daemon)
        if status["memory_used"] == at_first and status["connections"] == 1:
            break
        time.sleep(0.05)
    tap.is_(f"{name}: no model is left, and no memory",
            status["models"] == 0 and status["memory_used"] == at_first, status)


def run(daemon, name, *args):
    code, out, err = daemon.ctl("--json", "bench", *args)
    tap.is_(f"{name}: exit code 0, nothing on stderr", code == 0 and not err, f"{code}\n{err}")
    return json.loads(out)


def near(a, b):
    return abs(a - b) <= 1e-6 * abs(b)


def plane_agrees(got, plane, flop):
    """Rates follow from counts and seconds, percentiles rise, the device's time is inside."""
    rate = plane["requests"] / plane["seconds"]
    latency, device = plane["latency_us"], plane["device_us"]
    rising = all(0 < s["p50"] <= s["p90"] <= s["p99"] <= s["max"] for s in (latency, device))
    return (set(plane) == PLANE_KEYS and set(latency) == SPREAD_KEYS and
            set(device) == SPREAD_KEYS and rising and plane["device_requests"] > 0 and
            latency["max"] <= plane["seconds"] * 1e6 * 1.001 and
            near(plane["forwards_per_s"], rate) and near(plane["tflops"], rate * flop / 1e12) and
            near(plane["device_tflops"], flop / device["p50"] / 1e6) and got["flop"] == flop)


# --- cases ---


def alone(daemon):
    got = run(daemon, "one client, depth 1", *SMALL, "--requests", "30")
    tap.is_("one client: keys as documented, of version 1",
            set(got) == KEYS and got["fp8ctl_json"] == 1, sorted(set(got) ^ KEYS))
    tap.is_("one client: what was measured",
            (got["layer"], got["dtype"], got["mode"], got["clients"], got["depth"]) ==
            ({"m": 8, "n": 32, "k": 48}, "BF16", "eval", 1, 1), got)
    tap.is_("one client: both planes, as many requests as asked for",
            [(p["plane"], p["requests"]) for p in got["planes"]] ==
            [("resident", 30), ("inline", 30)], got["planes"])
    for plane in got["planes"]:
        tap.is_(f"one client, {plane['plane']}: keys, and figures that agree",
                plane_agrees(got, plane, 2 * 8 * 32 * 48), plane)
        tap.is_(f"one client, {plane['plane']}: overhead, and no waiting",
                plane["overhead_us"] >= 0 and plane["waiting_us"] is None, plane)
    resident, inline = got["planes"]
    tap.is_("one client: payload where tensors travel",
            (resident["payload_bytes"], resident["payload_gb_per_s"]) == (0, None) and
            inline["payload_bytes"] == 2 * (8 * 48 + 8 * 32) and
            near(inline["payload_gb_per_s"], inline["forwards_per_s"] * 1280 / 1e9), got["planes"])
    nothing_left(daemon, "one client")


def together(daemon):
    got = run(daemon, "three clients, depth 4", *SMALL, "--clients", "3", "--depth", "4", "--requests", "20",
              "--mode", "train", "--dtype", "f32")
    tap.is_("three clients: what was measured",
            (got["dtype"], got["mode"], got["clients"], got["depth"]) == ("F32", "train", 3, 4), got)
    for plane in got["planes"]:
        tap.is_(f"three clients, {plane['plane']}: the requests of all, figures that agree",
                plane["requests"] == 60 and plane_agrees(got, plane, 2 * 8 * 32 * 48), plane)
        tap.is_(f"three clients, {plane['plane']}: waiting, not called overhead",
                plane["overhead_us"] is None and plane["waiting_us"] >= 0, plane)
    nothing_left(daemon, "three clients")
    for plane in ("resident", "inline"):
        got = run(daemon, f"--plane {plane}", *SMALL, "--plane", plane, "--requests", "1", "--dtype", "f16",
                  "--depth", "5")
        tap.is_(f"--plane {plane}: that one alone",
                [(p["plane"], p["requests"]) for p in got["planes"]] == [(plane, 1)], got)


def text(daemon):
    code, out, err = daemon.ctl("bench", *SMALL, "--requests", "3")
    tap.is_("text: layer, a row for each plane, what the columns mean",
            code == 0 and not err and "8 tokens, [32, 48] weight, BF16, eval" in out and
            "\nresident " in out and "\ninline " in out and "DEVICE and OVERHEAD are medians" in out,
            out + err)
    code, out, _ = daemon.ctl("bench", *SMALL, "--requests", "3", "--depth", "2")
    tap.is_("text: no overhead where requests wait for each other",
            code == 0 and "WAITING" in out and "OVERHEAD" not in out, out)
    code, out, err = daemon.ctl("--json", "batch", "-",
                                stdin=f"bench {' '.join(SMALL)} --requests 2\nmodels\n")
    rows = [json.loads(line) for line in out.splitlines()]
    tap.is_("a batch may hold it", code == 0 and len(rows) == 2 and rows[1]["models"] == [], out + err)


def refusals(daemon):
    bad = {
        ("--layer", "8,32"): "--layer is '8,32', needed three whole numbers M,N,K",
        ("--layer", "8,33,48"): "N is 33, needed a multiple of 16",
        ("--clients", "0"): "--clients is '0', needed a whole number from 1 to 256",
        ("--depth", "many"): "--depth is 'many', needed a whole number from 1 to 512",
        ("--requests", "-1"): "--requests is '-1', needed a whole number from 1 to 1000000",
        ("--mode", "calibrate"): "--mode is 'calibrate', needed eval|train",
        ("--plane", "shm"): "--plane is 'shm', needed resident|inline|both",
        ("--dtype", "fp8"): "--dtype is 'fp8', needed bf16|f16|f32",
        ("--depth", "65"): "--depth is 65, needed at most 64",
        ("--layer", "8,65536,65536"): "needed at most 1073741824, this server's payload_bytes",
    }
    for words, sentence in bad.items():
        code, out, err = daemon.ctl("bench", *words)
        tap.is_(f"{' '.join(words)}: exit code 2, one sentence",
                code == 2 and sentence in err and not out, f"{code}\n{out}{err}")
    code, out, err = daemon.ctl("--json", "--timeout", "0.001", "bench", "--layer", "64,4096,4096")
    tap.is_("an answer that comes too late: exit code 1 or 3, an object",
            code in (1, 3) and "error" in json.loads(out), f"{code}\n{out}{err}")
    nothing_left(daemon, "too late")


def begun(daemon):
    """A bench that goes on for long and is at work: its process."""
    process = subprocess.Popen(daemon.words("bench", *SMALL, "--requests", "1000000", "--clients",
                                            "2", "--depth", "2"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(400):
        status = status_of(daemon)
        if status["models"] == 1 and status["connections"] == 4:
            return process
        time.sleep(0.02)
    raise RuntimeError("the bench does not begin")


def interrupted(daemon):
    for number in (signal.SIGINT, signal.SIGTERM):
        process = begun(daemon)
        name = models(daemon)[0]["name"]
        tap.is_(f"{number.name}: the model has a name of its own",
                name.startswith(f"fp8ctl-bench-{process.pid}-"), name)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        tap.is_(f"{number.name}: exit code 1, said so, no figures",
                process.returncode == 1 and "interrupted" in err and not out,
                f"{process.returncode}\n{out}{err}")
        nothing_left(daemon, number.name)


def model_taken_away(daemon):
    process = begun(daemon)
    daemon.must("unload", models(daemon)[0]["name"])
    out, err = process.communicate(timeout=60)
    tap.is_("a model that another client unloads: exit code 1, the server's reason",
            process.returncode == 1 and "NOT_FOUND" in err and not out, err)
    nothing_left(daemon, "unloaded")


def server_gone(daemon):
    process = begun(daemon)
    daemon.kill()
    out, err = process.communicate(timeout=60)
    tap.is_("a server that dies: exit code 1, said once",
            process.returncode == 1 and not out and err.count("fp8ctl:") == 1, err)
    code, out, err = daemon.ctl("bench", *SMALL)
    tap.is_("no server: exit code 3", code == 3 and not out, f"{code}\n{err}")


def main():
    global at_first
    with tempfile.TemporaryDirectory() as top:
        daemon = Daemon(top).start()
        try:
            at_first = status_of(daemon)["memory_used"]
            alone(daemon)
            together(daemon)
            text(daemon)
            refusals(daemon)
            interrupted(daemon)
            model_taken_away(daemon)
            code = daemon.stop()
            tap.is_("the daemon stopped cleanly", code == 0, code)
            os.unlink(daemon.log)
            daemon.start()
            server_gone(daemon)
        finally:
            if daemon.process.poll() is None:
                daemon.kill()
    print(f"1..{tap.count}")
    return tap.failed != 0


at_first = 0  # bytes
if __name__ == "__main__":
    sys.exit(main())
