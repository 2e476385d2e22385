#include "kernels/scaler.h"

#include <string.h>

void scaler_init(struct scaler *s, uint32_t len)
{
    memset(s, 0, scaler_bytes(len));
    s->scale = 1.0f;
    s->scale_inv = 1.0f;
    s->len = len;
}

void scaler_reset(struct scaler *s)
{
    scaler_init(s, s->len);
}

void scaler_calibrate(struct scaler *s, enum dtype fmt, int margin, float amax)
{
    if (!(amax > 0.0f))
        return;
    float row0 = s->history[0];
    scaler_roll(s, amax);
    s->history[0] = row0; /* what training collected meanwhile is not calibration's to drop */
    s->scale = recipe_scale(amax, fmt, margin);
    s->scale_inv = recipe_scale_inv(s->scale);
    s->set = 1;
}

void scaler_adopt(struct scaler *s, float scale_inv)
{
    s->scale = recipe_scale_of(scale_inv);
    s->scale_inv = scale_inv;
    s->set = 1;
}

void scaler_resize(struct scaler *to, const struct scaler *from)
{
    uint32_t len = to->len;
    memset(to->history, 0, (size_t)len * sizeof(float));
    uint32_t rows = (len < from->len ? len : from->len) - 1;
    memcpy(to, from, offsetof(struct scaler, history));
    to->len = len;
    to->history[0] = from->history[0];
    memcpy(to->history + len - rows, from->history + from->len - rows, rows * sizeof(float));
}
