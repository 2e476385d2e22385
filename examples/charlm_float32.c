#include "examples/charlm_float32.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double draw(uint64_t *state)
{
    uint64_t h = *state += 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return (double)((h ^ h >> 31) >> 11) * 0x1p-53;
}

int adam_new(struct adam *a, size_t n, double size, uint64_t *state)
{
    *a = (struct adam){.p = calloc(4 * n, sizeof *a->p), .n = n};
    if (!a->p)
        return 1;
    a->g = a->p + n;
    a->m = a->g + n;
    a->v = a->m + n;
    for (size_t i = 0; i < n && size > 0; i++)
        a->p[i] = (float)(size * (2 * draw(state) - 1));
    return 0;
}

void adam_step(struct adam *a, int number)
{
    float first = 1 - powf(0.9f, (float)number), second = sqrtf(1 - powf(0.999f, (float)number));
    for (size_t i = 0; i < a->n; i++) {
        a->m[i] += 0.1f * (a->g[i] - a->m[i]);
        a->v[i] = 0.999f * a->v[i] + 0.001f * a->g[i] * a->g[i];
        a->p[i] -= RATE / first * a->m[i] / (sqrtf(a->v[i]) / second + 1e-8f);
        a->g[i] = 0;
    }
}

int here_forward(const struct linear *l, int tokens, const float *x, float *y)
{
    float *wt = malloc(l->w.n * sizeof *wt);
    if (!wt)
        return 1;
    for (int o = 0; o < l->out; o++)
        for (int i = 0; i < l->in; i++)
            wt[i * l->out + o] = l->w.p[o * l->in + i];
    for (int t = 0; t < tokens; t++) {
        float *row = y + t * l->out;
        memcpy(row, l->b.p, (size_t)l->out * sizeof *row);
        for (int i = 0; i < l->in; i++)
            for (int o = 0; o < l->out; o++)
                row[o] += x[t * l->in + i] * wt[i * l->out + o];
    }
    free(wt);
    return 0;
}

void here_backward(const struct linear *l, int tokens, const float *x, const float *dy, float *dx)
{
    memset(dx, 0, (size_t)tokens * (size_t)l->in * sizeof *dx);
    for (int t = 0; t < tokens; t++)
        for (int o = 0; o < l->out; o++) {
            float d = dy[t * l->out + o];
            l->b.g[o] += d;
            for (int i = 0; i < l->in; i++) {
                dx[t * l->in + i] += d * l->w.p[o * l->in + i];
                l->w.g[o * l->in + i] += d * x[t * l->in + i];
            }
        }
}
