#include "client/conn.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

static void expect_header(struct reader *r)
{
    r->state = READER_HEADER;
    r->at = r->head;
    r->left = FRAME_HEADER_BYTES;
}

void reader_init(struct reader *r)
{
    *r = (struct reader){0};
    expect_header(r);
}

void reader_fini(struct reader *r)
{
    mem_free(r->meta);
    r->meta = NULL;
}

static int header_done(struct fp8d *c, struct fault *f)
{
    struct reader *r = &c->reader;
    int rc = frame_decode(r->head, &c->caps, &r->header, f);
    if (rc)
        return fault_wrap(f, "the server sent a bad frame");
    size_t len = r->header.meta_len;
    if (len > r->meta_room) {
        unsigned char *grown = mem_realloc(r->meta, len);
        if (!grown)
            return fault_set(f, -ENOMEM, "no memory for a reply of %zu bytes", len);
        r->meta = grown;
        r->meta_room = len;
    }
    r->state = READER_META;
    r->at = r->meta;
    r->left = len;
    return 0;
}

static int meta_done(struct fp8d *c, struct fault *f)
{
    void *dest = NULL;
    int rc = inbound_begin(c, c->reader.meta, &dest, f);
    c->reader.state = READER_PAYLOAD;
    c->reader.at = dest;
    c->reader.left = c->reader.header.payload_len;
    return rc;
}

/* Go on while a part is complete: an empty meta or payload completes at once. */
static int advance(struct fp8d *c, struct fault *f)
{
    int rc = 0;
    while (!rc && !c->reader.left) {
        if (c->reader.state == READER_HEADER) {
            rc = header_done(c, f);
        } else if (c->reader.state == READER_META) {
            rc = meta_done(c, f);
        } else {
            inbound_end(c);
            expect_header(&c->reader);
        }
    }
    return rc;
}

int reader_took(struct fp8d *c, uint64_t n, struct fault *f)
{
    if (c->reader.at)
        c->reader.at += n;
    c->reader.left -= n;
    return advance(c, f);
}

int reader_feed(struct fp8d *c, const unsigned char *p, size_t len, struct fault *f)
{
    while (len) {
        struct reader *r = &c->reader;
        size_t n = len < r->left ? len : (size_t)r->left;
        if (r->at)
            memcpy(r->at, p, n);
        p += n;
        len -= n;
        int rc = reader_took(c, n, f);
        if (rc)
            return rc;
    }
    return 0;
}
