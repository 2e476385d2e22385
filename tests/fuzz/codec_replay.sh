#!/bin/sh
# The fuzz target of the request layer over the corpus that is kept.
exec "$FP8D_BUILDDIR/tests/fuzz/codec_replay" "$FP8D_SRCDIR/tests/fuzz/corpus/codec"
