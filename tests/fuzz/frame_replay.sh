#!/bin/sh
# The fuzz target of the read state machine over its seeds.
exec "$FP8D_BUILDDIR/tests/fuzz/frame_replay" "$FP8D_SRCDIR/tests/fuzz/frame_seeds"
