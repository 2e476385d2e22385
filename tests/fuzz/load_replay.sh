#!/bin/sh
# The fuzz target of loads over its seeds and what the fuzzer found.
exec "$FP8D_BUILDDIR/tests/fuzz/load_replay" "$FP8D_SRCDIR/tests/fuzz/corpus/load"
