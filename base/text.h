/* text.h - UTF-8, names and globs. Pure functions over bytes; any thread. */
#ifndef FP8D_BASE_TEXT_H
#define FP8D_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes (1 to 4) of the printable UTF-8 sequence at s, or 0 where there is none: overlong forms,
 * surrogates, code points above U+10FFFF, controls (C0, DEL, C1) and truncation all give 0. */
unsigned utf8_length(const unsigned char *s, size_t len);

/* True if all of s is printable UTF-8 in the sense of utf8_length (the empty string is). */
bool utf8_printable(const char *s, size_t len);

/* True for 1 to 128 bytes of [A-Za-z0-9._-]: the name of a model. */
bool text_is_model_name(const char *s, size_t len);

/* True for 1 to 1024 bytes of printable UTF-8: the name of a layer or a tensor. */
bool text_is_tensor_name(const char *s, size_t len);

/* Shell-like match of the whole of text: `*` any run (also empty, slashes included), `?` one byte,
 * every other byte itself. No classes, no escapes. Time is O(len(pattern) * len(text)), memory
 * constant; patterns from files never reach regcomp. */
bool text_glob(const char *pattern, const char *text);

/* Write `text` of `len` bytes into out (NUL-terminated, at most `size` bytes), every byte that is
 * not printable ASCII or well-formed UTF-8, and what turns the direction of text, shown as \xNN, and cut with "..." where it does not fit:
 * foreign text is shown only through this. Returns out. size is at least 8. */
const char *text_escape(char *out, unsigned size, const char *text, unsigned long len);

#endif
