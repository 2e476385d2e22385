#include "tests/parity/both.h"

#include "kernels/fp8.h"

struct both both;
const uint64_t both_tokens[6] = {0, 1, 7, 16, 100, 4096};
const uint64_t both_features[6] = {16, 48, 768, 1008, 4096, 14336};

void both_setup(void)
{
    struct rig *g = &both.gpu;
    rig_open(&both.cpu, CPU_LEVEL_AUTO, 0, false);
    memset(g, 0, sizeof *g);
    ck_assert_msg(!rig_open_cuda(&g->b, &g->f), "%s", g->f.text);
    ck_assert_msg(!queue_open(g->b, "parity", &g->q, &g->f), "%s", g->f.text);
}

void both_teardown(void)
{
    rig_close(&both.gpu);
    rig_close(&both.cpu);
}

bool both_takes(uint64_t tokens, uint64_t features)
{
    return !rig_small() || (tokens <= 100 && features <= 1008);
}

/* --- inputs --- */

uint64_t both_hash(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0xd1b54a32d192ed03u + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One in eight a boundary of a cast with scale 1 or its neighbour, else any bits. */
static uint32_t wild(uint64_t h)
{
    static const uint32_t edges[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001,
                                     0xffc00000, 0x7f7fffff, 0x00800000, 0x00000001, 0x007fffff,
                                     0x43e80000, 0x43e00000, 0x47700000, 0x47600000, 0x3a800000,
                                     0x37000000, 0x3b000000, 0x37800000, 0x3c000000, 0x38800000};
    if (h & 7)
        return (uint32_t)(h >> 32);
    uint32_t edge = edges[(h >> 8) % (sizeof edges / sizeof edges[0])];
    return edge + (uint32_t)(h >> 40) % 3 - 1;
}

static uint32_t tame(uint64_t h)
{
    uint32_t exponent = 127 - 14 + (uint32_t)(h >> 8) % 20;
    if (h % 16 == 0)
        return (uint32_t)(h >> 8 & 1) << 31;
    return (uint32_t)(h >> 63) << 31 | exponent << 23 | (uint32_t)(h >> 32 & 0x7fffff);
}

void both_fill(void *p, enum dtype t, uint64_t count, enum data kind, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t h = both_hash(seed, i);
        uint32_t u = kind == DATA_WILD ? wild(h) : tame(h);
        if (t == DTYPE_F32)
            ((uint32_t *)p)[i] = u;
        else if (t == DTYPE_BF16 || kind == DATA_WILD)
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
        else
            ((uint16_t *)p)[i] = f16_encode(fp8_bits_float(u));
    }
}

/* --- tensors --- */

static struct buffer *device_buffer(uint64_t bytes)
{
    struct buffer *buf = NULL;
    struct rig *g = &both.gpu;
    ck_assert_msg(!buffer_new(g->b, NULL, BUFFER_DEVICE, bytes, "parity", &buf, &g->f), "%s",
                  g->f.text);
    return buf;
}

static void upload(struct buffer *to, uint64_t offset, const void *from, uint64_t bytes)
{
    struct rig *g = &both.gpu;
    struct buffer *host = rig_buffer(g, bytes, from);
    ck_assert_int_eq(backend_copy(g->q, to, offset, host, 0, bytes, &g->f), 0);
    rig_wait(g);
    buffer_unref(host);
}

struct pair both_tensor(enum dtype t, uint64_t rows, uint64_t cols, const void *data,
                        uint64_t shift)
{
    uint64_t size = dtype_bits(t) / 8, bytes = rows * cols * size;
    struct pair p = {.cpu = rig_tensor(&both.cpu, t, rows, cols, data), .gpu = {0}};
    p.gpu = p.cpu;
    p.gpu.buf = device_buffer(bytes + shift * size);
    p.gpu.offset = shift * size;
    if (bytes)
        upload(p.gpu.buf, p.gpu.offset, data, bytes);
    return p;
}

void pair_free(struct pair *p)
{
    buffer_unref(p->cpu.buf);
    buffer_unref(p->gpu.buf);
}

struct buffer *gpu_poisoned(uint64_t bytes)
{
    struct rig *g = &both.gpu;
    struct buffer *to = device_buffer(bytes), *host = rig_buffer(g, bytes, NULL);
    memset(host->host, POISON, bytes);
    ck_assert_int_eq(backend_copy(g->q, to, 0, host, 0, bytes, &g->f), 0);
    rig_wait(g);
    buffer_unref(host);
    return to;
}

void gpu_poison_next(uint64_t bytes)
{
    buffer_unref(gpu_poisoned(bytes)); /* the heap deals the block given back last */
}

void gpu_read(struct buffer *from, uint64_t offset, void *to, uint64_t bytes)
{
    struct rig *g = &both.gpu;
    struct buffer *host = rig_buffer(g, bytes, NULL);
    ck_assert_msg(!backend_copy(g->q, host, 0, from, offset, bytes, &g->f), "%s", g->f.text);
    rig_wait(g);
    memcpy(to, host->host, bytes);
    buffer_unref(host);
}
