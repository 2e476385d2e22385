/* words.h - one line of a batch, split into words as a shell would, without expansions.
 *
 * Blanks separate; '...' keeps all, "..." keeps all but \" and \\, a backslash keeps the next
 * character, # at the beginning of a word starts a comment.
 */
#ifndef FP8D_CLIENT_CTL_WORDS_H
#define FP8D_CLIENT_CTL_WORDS_H

#define WORDS_MAX 600

struct words {
    char *word[WORDS_MAX]; /* inside the line, which is changed */
    int count;
};

/* NULL, or what is wrong. */
const char *words_split(struct words *w, char *line);

#endif
