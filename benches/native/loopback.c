/* The limit of a network layer on one machine: the same messages over a TCP connection on loopback, both ends in C.
 *
 * No header, no acknowledgement, nobody is told. A message holds `rows` samples; on the wire it is leaf after leaf, all
 * rows of each. The receiver reads straight into a ring-shaped buffer, laid out as in memcpy.c, of which `rows` divides
 * the batch:
 *
 *   batch 0: leaf 0 x batch_size | leaf 1 x batch_size | ... || batch 1: ...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { MAX_PARTS = 1024, MAX_CONNECTIONS = 64 }; /* IOV_MAX; what fits on the stack */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Moves past `bytes` of the parts, and returns the first that is not done. */
static struct iovec *advance(struct iovec *part, struct iovec *end, uint64_t bytes)
{
    for (; part < end && bytes >= part->iov_len; part++)
        bytes -= part->iov_len;
    if (bytes) {
        part->iov_base = (char *)part->iov_base + bytes;
        part->iov_len -= bytes;
    }
    return part;
}

/* One blocking call, and more only where the kernel takes a part. 0, or an errno. */
static int send_parts(int fd, const struct iovec *parts, uint64_t count)
{
    struct iovec rest[MAX_PARTS];
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};
    uint64_t left = 0;
    for (uint64_t part = 0; part < count; part++)
        left += parts[part].iov_len;
    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return errno;
        uint64_t done = sent < 0 ? 0 : (uint64_t)sent;
        if ((left -= done) == 0)
            return 0;
        if (message.msg_iov == parts) {
            for (uint64_t part = 0; part < count; part++)
                rest[part] = parts[part];
            message.msg_iov = rest;
        }
        struct iovec *end = message.msg_iov + message.msg_iovlen;
        message.msg_iov = advance(message.msg_iov, end, done);
        message.msg_iovlen = (size_t)(end - message.msg_iov);
    }
}

/* `rounds` times all `writes`, one call each; write number w is parts[w * parts_per_write ...]. 0, or an errno. */
int loopback_send(int fd, const struct iovec *parts, uint64_t writes, uint64_t parts_per_write, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++)
        for (uint64_t w = 0; w < writes; w++) {
            int error = send_parts(fd, parts + w * parts_per_write, parts_per_write);
            if (error)
                return error;
        }
    return 0;
}

/* As loopback_send, one write per period, its first eight bytes the time at which it is sent. */
int loopback_send_paced(int fd, const struct iovec *parts, uint64_t writes, uint64_t parts_per_write, uint64_t count,
                        int64_t period_ns)
{
    int64_t due = now_ns() + period_ns;
    for (uint64_t i = 0; i < count; i++, due += period_ns) {
        struct timespec t = {due / 1000000000, due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) != 0) {
        }
        const struct iovec *write = parts + i % writes * parts_per_write;
        *(int64_t *)write->iov_base = now_ns();
        int error = send_parts(fd, write, parts_per_write);
        if (error)
            return error;
    }
    return 0;
}

struct leaf {
    uint64_t bytes;
    uint64_t kind; /* of its elements: 'f' float32, 'i' int32, 'b' int8 */
};

struct ring {
    char *memory;
    const struct leaf *leaves;
    uint64_t leaf_count, batch_bytes, batch_size, slots;
    uint64_t rows;      /* in a message */
    uint64_t per_read;  /* messages that one read asks for; per_read * leaf_count <= MAX_PARTS */
    uint64_t next;      /* the slot of the next message: they are given out in turn, and nobody waits for a reader */
    uint64_t received;  /* samples */
    double touched;     /* the first element of every leaf of every sample, added up */
};

struct connection {
    int64_t fd;
    uint64_t first;  /* the slot of the first message that is being read */
    uint64_t begun;  /* messages that are being read, 0 for none */
    uint64_t ended;  /* those of them that are whole */
    struct iovec *part, *end;
    struct iovec parts[MAX_PARTS];
};

const uint64_t loopback_connection_bytes = sizeof(struct connection);

static double touch(const char *at, uint64_t rows, struct leaf leaf)
{
    double total = 0;
    switch (leaf.kind) {
    case 'f':
        for (; rows--; at += leaf.bytes)
            total += *(const float *)at;
        break;
    case 'i':
        for (; rows--; at += leaf.bytes)
            total += *(const int32_t *)at;
        break;
    case 'b':
        for (; rows--; at += leaf.bytes)
            total += *(const int8_t *)at;
    }
    return total;
}

static uint64_t slot_after(const struct ring *ring, uint64_t slot, uint64_t messages)
{
    return (slot + messages * ring->rows) % ring->slots;
}

static void begin(struct ring *ring, struct connection *c)
{
    c->first = ring->next;
    c->begun = ring->per_read;
    c->ended = 0;
    c->part = c->end = c->parts;
    for (uint64_t m = 0; m < c->begun; m++, ring->next = slot_after(ring, ring->next, 1)) {
        char *at = ring->memory + ring->next / ring->batch_size * ring->batch_bytes;
        uint64_t row = ring->next % ring->batch_size;
        for (uint64_t l = 0; l < ring->leaf_count; at += ring->leaves[l++].bytes * ring->batch_size)
            *c->end++ = (struct iovec){at + row * ring->leaves[l].bytes, ring->leaves[l].bytes * ring->rows};
    }
}

/* Touches and counts the messages that became whole. */
static void finish(struct ring *ring, struct connection *c)
{
    uint64_t whole = (uint64_t)(c->part - c->parts) / ring->leaf_count;
    for (; c->ended < whole; c->ended++) {
        uint64_t slot = slot_after(ring, c->first, c->ended);
        char *at = ring->memory + slot / ring->batch_size * ring->batch_bytes;
        for (uint64_t l = 0; l < ring->leaf_count; at += ring->leaves[l++].bytes * ring->batch_size)
            ring->touched += touch(at + slot % ring->batch_size * ring->leaves[l].bytes, ring->rows, ring->leaves[l]);
        ring->received += ring->rows;
    }
    if (c->ended == c->begun)
        c->begun = 0;
}

/* One read. 0, or an errno; EAGAIN where it may not wait and there is nothing. */
static int read_some(struct ring *ring, struct connection *c, int flags)
{
    if (!c->begun)
        begin(ring, c);
    struct msghdr message = {.msg_iov = c->part, .msg_iovlen = (size_t)(c->end - c->part)};
    ssize_t got = recvmsg((int)c->fd, &message, flags);
    if (got == 0)
        return ECONNRESET;
    if (got < 0)
        return errno == EINTR ? 0 : errno;
    c->part = advance(c->part, c->end, (uint64_t)got);
    finish(ring, c);
    return 0;
}

/* Reads until `until` samples were received in all. One connection is read with calls that block, several are polled.
 * 0, or an errno. */
int loopback_receive(struct ring *ring, struct connection *connections, uint64_t count, uint64_t until)
{
    if (count == 1) {
        int error = 0;
        while (!error && ring->received < until)
            error = read_some(ring, connections, 0);
        return error;
    }
    struct pollfd ready[MAX_CONNECTIONS];
    if (count > MAX_CONNECTIONS)
        return EMFILE;
    for (uint64_t i = 0; i < count; i++)
        ready[i] = (struct pollfd){.fd = (int)connections[i].fd, .events = POLLIN};
    while (ring->received < until) {
        if (poll(ready, count, -1) < 0 && errno != EINTR)
            return errno;
        for (uint64_t i = 0; i < count; i++) {
            int error = ready[i].revents ? read_some(ring, connections + i, MSG_DONTWAIT) : 0;
            if (error && error != EAGAIN)
                return error;
        }
    }
    return 0;
}

/* Receives `count` messages of one sample, from one sender, in batches of 1, and notes how long after its stamp each
 * was whole. 0, or an errno. */
int loopback_receive_stamps(struct ring *ring, struct connection *c, uint64_t count, int64_t *waits_ns)
{
    uint64_t start = ring->next, before = ring->received;
    for (uint64_t i = 0; i < count; i++) {
        int error = loopback_receive(ring, c, 1, before + i + 1);
        if (error)
            return error;
        waits_ns[i] = now_ns() - *(int64_t *)(ring->memory + slot_after(ring, start, i) * ring->batch_bytes);
    }
    return 0;
}
