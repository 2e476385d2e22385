#!/usr/bin/env python3
"""Writes the seeds of frame_fuzz.c into frame_seeds/: streams of good frames, and of nearly good ones."""
import os
import random
import struct


def frame(type_, meta=b"", payload=b"", fds=0, flags=0, magic=b"FP8D", version=1, id_=1, **over):
    return magic + struct.pack("<HHQIHHQ", version, type_, id_, over.get("meta_len", len(meta)), flags,
                               fds, over.get("payload_len", len(payload))) + meta + payload


def main():
    r = random.Random(1)
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "frame_seeds")
    os.makedirs(out, exist_ok=True)
    kinds = {f"type{t}": frame(1, b"hello") + frame(t, b"m" * 7, b"p" * 50) + frame(2, b"", b"x")
             for t in range(12)}
    kinds["many"] = b"".join(frame(r.choice([1, 2, 3, 4, 5, 11]), r.randbytes(r.randrange(60)),
                                   r.randbytes(r.randrange(200))) for _ in range(30))
    kinds["caps"] = frame(1, b"m" * 300, b"p" * 2000) + frame(1, meta_len=301)
    kinds["payload_over"] = frame(1, payload_len=2001)
    kinds["payload_2_63"] = frame(1, payload_len=1 << 63)
    kinds["magic"] = frame(1) + frame(1, magic=b"FP8E")
    kinds["version"] = frame(1, version=2)
    kinds["flags"] = frame(1, flags=3) + frame(1, flags=4)
    kinds["half"] = frame(1, b"meta", payload_len=100)
    kinds["empty"] = b""
    for name, stream in kinds.items():
        with open(os.path.join(out, name), "wb") as f:
            f.write(bytes([r.randrange(256), 0]) + stream)
    for n in (1, 2, 8):
        with open(os.path.join(out, f"fds{n}"), "wb") as f:
            f.write(bytes([7, n]) + b"".join(frame(1, b"", b"p" * 9, fds=r.choice([0, n])) for _ in range(9)))


if __name__ == "__main__":
    main()
