#!/bin/sh
# The fuzz target of the safetensors reader over every good and evil file that is kept.
exec "$FP8D_BUILDDIR/tests/fuzz/safetensors_replay" "$FP8D_SRCDIR/tests/data/evil" \
    "$FP8D_SRCDIR/examples/data"
