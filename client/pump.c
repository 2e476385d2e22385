/* Moving bytes: replies are always received while a request is sent or waited for. */
#include "client/conn.h"

#include "client/transport.h"

#include <errno.h>

/* After a broken pipe: how long to wait for the reason and the end of the stream. */
#define LAST_WORDS_MS 2000

/* The connection is over: remember why. What the server said on leaving comes first. */
static int give_up(struct fp8d *c, struct fault *f)
{
    if (c->goaway.code)
        *f = c->goaway;
    c->dead = *f;
    transport_close(c->fd);
    c->fd = -1;
    return f->code;
}

static int end_of_stream(struct fp8d *c, struct fault *f)
{
    bool amid = c->reader.state != READER_HEADER || c->reader.left != FRAME_HEADER_BYTES;
    fault_set(f, FP8D_ECLOSED, "the server closed the connection%s",
              amid ? " in the middle of a reply" : "");
    return give_up(c, f);
}

/* One receive: bytes taken, 0 if there are none now, or a fault. Long parts go straight to their
 * place. */
static int64_t receive_once(struct fp8d *c, struct fault *f)
{
    struct reader *r = &c->reader;
    bool direct = r->at && r->left >= sizeof c->buffer;
    int64_t n = direct ? transport_recv(c->fd, r->at, r->left)
                       : transport_recv(c->fd, c->buffer, sizeof c->buffer);
    if (n == -EAGAIN)
        return 0;
    if (n == 0 || n == -ECONNRESET || n == -EPIPE)
        return end_of_stream(c, f);
    if (n < 0) {
        fault_set(f, (int)n, "receiving from the server failed: %s", status_text((int)n));
        return give_up(c, f);
    }
    int rc = direct ? reader_took(c, (uint64_t)n, f) : reader_feed(c, c->buffer, (size_t)n, f);
    return rc ? give_up(c, f) : n;
}

/* Receive what is there, or wait until something is or (with `out`) more can be sent. */
static int turn(struct fp8d *c, int out, uint64_t deadline, struct fault *f)
{
    int64_t n = receive_once(c, f);
    if (n)
        return n < 0 ? (int)n : 0;
    int rc = transport_wait(c->fd, out, c->spin_ns, deadline);
    if (rc == -ETIMEDOUT)
        return fault_set(f, rc, "the server did not answer in time");
    if (rc) {
        fault_set(f, rc, "waiting for the server failed: %s", status_text(rc));
        return give_up(c, f);
    }
    return 0;
}

int pump_until_replied(struct fp8d *c, const struct pending *p, uint64_t deadline, struct fault *f)
{
    int rc = 0;
    while (!rc && !p->replied) {
        if (c->dead.code) {
            *f = c->dead;
            return f->code;
        }
        rc = turn(c, 0, deadline, f);
    }
    return rc;
}

int pump_until_room(struct fp8d *c, uint64_t deadline, struct fault *f)
{
    int rc = 0;
    while (!rc && c->pending.flying >= c->server.in_flight)
        rc = turn(c, 0, deadline, f);
    return rc;
}

/* The server reads no more: replies and the reason may still be on their way. */
static int last_words(struct fp8d *c, struct fault *f)
{
    uint64_t deadline = transport_now() + (uint64_t)LAST_WORDS_MS * 1000000;
    int rc = 0;
    while (!rc)
        rc = turn(c, 0, deadline, f);
    return c->dead.code ? f->code : end_of_stream(c, f);
}

static unsigned iov_skip(struct iovec *iov, unsigned count, size_t n)
{
    unsigned done = 0;
    while (done < count && n >= iov[done].iov_len)
        n -= iov[done++].iov_len;
    if (done < count) {
        iov[done].iov_base = (char *)iov[done].iov_base + n;
        iov[done].iov_len -= n;
    }
    return done;
}

int pump_send(struct fp8d *c, struct iovec *iov, unsigned count, const int *fds, unsigned nfds,
              uint64_t deadline, struct fault *f)
{
    bool begun = false;
    while (count) {
        int64_t n = transport_send(c->fd, iov, count, fds, begun ? 0 : nfds);
        if (n > 0) {
            begun = true;
            unsigned done = iov_skip(iov, count, (size_t)n);
            iov += done;
            count -= done;
            continue;
        }
        if (n == -EPIPE || n == -ECONNRESET)
            return last_words(c, f);
        if (n != -EAGAIN) {
            fault_set(f, (int)n, "sending to the server failed: %s", status_text((int)n));
            return begun ? give_up(c, f) : f->code;
        }
        int rc = turn(c, 1, deadline, f);
        if (rc == -ETIMEDOUT && begun)
            return give_up(c, f);
        if (rc)
            return rc;
    }
    return 0;
}
