/* Greets an mmcached service for a reader in C or C++: which ring it has, and that an entry of it is taken.
 *
 * Included as mmcached_reader.h is. One thread at a time may use a connection. The client lives, for the service, as
 * long as the connection's lock is held; leases depend only on the reader's entry, and stay after `mmc_disconnect`.
 */
#ifndef MMCACHED_CONNECTION_H
#define MMCACHED_CONNECTION_H
#include "mmcached_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MMC_PROTOCOL_VERSION 28

typedef struct mmc_connection {
    int fd, lock_fd;
    uint64_t num_requests;
    char client_id[33], lock_path[160];
} mmc_connection;

/* Greet the service; MMC_MISSING: it keeps no records. `timeout_s` bounds each wait for an answer. */
int mmc_connect(mmc_connection *connection, const char *run_dir, const char *name, int timeout_s, mmc_ring *ring);
/* Tell the service of an attached reader; MMC_REFUSED: the entry or the ring is not the service's any more. */
int mmc_register(mmc_connection *connection, const mmc_reader *reader);
void mmc_disconnect(mmc_connection *connection);
void mmc_drop(mmc_connection *connection); /* in a forked child */

#ifdef __cplusplus
}
#endif
#endif

#if defined(MMCACHED_READER_IMPLEMENTATION) && !defined(MMCACHED_CONNECTION_IMPLEMENTED)
#define MMCACHED_CONNECTION_IMPLEMENTED
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

/* ---- messages: ZMTP 3.0, frames [version][MessagePack] */

static const char mmc__ready[] = "\4\x29\5READY\x0bSocket-Type\0\0\0\6" "DEALER\x08Identity\0\0\0";

static int mmc__send_all(int fd, const void *bytes, size_t num_bytes)
{
    for (size_t done = 0; done < num_bytes;) {
        const ssize_t n = send(fd, (const uint8_t *)bytes + done, num_bytes - done, MSG_NOSIGNAL);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) return 0;
    }
    return 1;
}

static int mmc__receive_all(int fd, void *bytes, size_t num_bytes)
{
    for (size_t done = 0; done < num_bytes;) {
        const ssize_t n = recv(fd, (uint8_t *)bytes + done, num_bytes - done, 0);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) return 0;
    }
    return 1;
}

/* A MessagePack value: its kind ('u' integer, 's' text, 'a' array, 'm' map, 'n' nil, 'b' bool, '?' other). */
typedef struct { const uint8_t *at, *end; uint64_t value; } mmc__cursor;

static uint64_t mmc__big_endian(mmc__cursor *c, unsigned num_bytes)
{
    uint64_t value = 0;
    if ((size_t)(c->end - c->at) < num_bytes) return c->at = c->end, 0;
    while (num_bytes--) value = value << 8 | *c->at++;
    return value;
}

static char mmc__next(mmc__cursor *c)
{
    static const char kinds[] = "n?bbsss???xxuuuuxxxx?????sssaamm"; /* 0xc0 to 0xdf; x: a number that is not needed */
    if (c->at >= c->end) return 0;
    const uint8_t byte = *c->at++;
    c->value = byte;
    if (byte < 0x80) return 'u';
    if (byte < 0x90) return c->value = byte & 15, 'm';
    if (byte < 0xa0) return c->value = byte & 15, 'a';
    if (byte < 0xc0) return c->value = byte & 31, 's';
    if (byte >= 0xe0) return 'x';
    const char kind = kinds[byte - 0xc0];
    c->value = byte == 0xc3;
    if (byte == 0xca || byte == 0xcb) c->value = mmc__big_endian(c, byte == 0xca ? 4 : 8);
    else if (kind == 'u' || kind == 'x') c->value = mmc__big_endian(c, 1u << (byte & 3));
    else if (kind == 's') c->value = mmc__big_endian(c, 1u << (byte < 0xd9 ? byte - 0xc4 : byte - 0xd9));
    else if (kind == 'a' || kind == 'm') c->value = mmc__big_endian(c, byte & 1 ? 4 : 2);
    return kind;
}

static int mmc__skip(mmc__cursor *c, uint64_t num_values)
{
    while (num_values--) { /* arrays and maps are only longer lists of values */
        const char kind = mmc__next(c);
        if (kind == 0 || kind == '?') return 0;
        if (kind == 's' && c->value > (uint64_t)(c->end - c->at)) return 0;
        if (kind == 's') c->at += c->value;
        if (kind == 'a' || kind == 'm') num_values += c->value << (kind == 'm');
    }
    return 1;
}

static int mmc__is_text(mmc__cursor *c, const char *text)
{
    if (mmc__next(c) != 's' || c->value > (uint64_t)(c->end - c->at)) return 0;
    const int is_equal = c->value == strlen(text) && !memcmp(c->at, text, c->value);
    return c->at += c->value, is_equal;
}

static size_t mmc__put(uint8_t *to, const char *text, uint64_t number) /* a text, or a number */
{
    const size_t num_bytes = text ? strlen(text) : 8;
    to[0] = text ? 0xd9 : 0xcf;
    if (text) to[1] = (uint8_t)num_bytes, memcpy(to + 2, text, num_bytes);
    else for (int i = 0; i < 8; i++) to[1 + i] = (uint8_t)(number >> (56 - 8 * i));
    return (text ? 2 : 1) + num_bytes;
}

static int mmc__send(const mmc_connection *c, uint8_t *body, size_t num_bytes) /* body: less than 256 bytes */
{
    uint8_t message[272] = {1, 4, 'm', 'm', 'c', MMC_PROTOCOL_VERSION, 0, (uint8_t)num_bytes};
    memcpy(message + 8, body, num_bytes);
    return mmc__send_all(c->fd, message, 8 + num_bytes);
}

/* Receive the next message that has a body of at most `size` bytes; return the body's size, 0 without one. */
static size_t mmc__receive(const mmc_connection *c, uint8_t *body, size_t size)
{
    uint8_t head[9];
    size_t num_bytes = 0;
    for (unsigned frame = 0;;) {
        if (!mmc__receive_all(c->fd, head, 2)) return 0;
        uint64_t length = head[1];
        if (head[0] & 2) {
            if (!mmc__receive_all(c->fd, head + 2, 7)) return 0;
            mmc__cursor cursor = {head + 1, head + 9, 0};
            length = mmc__big_endian(&cursor, 8);
        }
        if (length > size || !mmc__receive_all(c->fd, body, length)) return 0;
        if (head[0] & 4) continue;
        if (frame == 0 && (length != 4 || memcmp(body, "mmc", 3) || body[3] != MMC_PROTOCOL_VERSION)) return 0;
        if (frame++ == 1) num_bytes = length;
        if (!(head[0] & 1) || frame > 2) return num_bytes; /* the answers here have no payload */
    }
}

static int mmc__parse_ring(mmc__cursor *c, mmc_ring *ring)
{
    uint64_t *const numbers[5] = {&ring->epoch, &ring->data_bytes, &ring->num_slots, &ring->max_readers,
                                  &ring->index_words};
    const char kind = mmc__next(c);
    if (kind == 'n') return MMC_MISSING;
    if (kind != 'a' || c->value != 7 || mmc__next(c) != 'u') return MMC_OTHER_VERSION;
    ring->uid = c->value;
    if (mmc__next(c) != 's' || c->value != 32 || c->end - c->at < 32) return MMC_OTHER_VERSION;
    memcpy(ring->id, c->at, 32);
    c->at += 32;
    if (strspn(ring->id, "0123456789abcdef") != 32) return MMC_OTHER_VERSION;
    for (int i = 0; i < 5; i++) {
        if (mmc__next(c) != 'u') return MMC_OTHER_VERSION;
        *numbers[i] = c->value;
    }
    return MMC_OK;
}

static int mmc__greet(mmc_connection *c, const char *name, mmc_ring *ring)
{
    uint8_t body[4096], greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    size_t n = 0;
    body[n++] = 0x93;
    n += mmc__put(body + n, "ClientHello", 0);
    n += mmc__put(body + n, c->client_id, 0);
    n += mmc__put(body + n, name, 0);
    if (!mmc__send_all(c->fd, greeting, sizeof greeting) || !mmc__send_all(c->fd, mmc__ready, sizeof mmc__ready))
        return MMC_NO_SERVICE;
    if (!mmc__send(c, body, n) || !mmc__receive_all(c->fd, greeting, sizeof greeting)) return MMC_NO_SERVICE;
    if (memcmp(greeting + 12, "NULL", 5)) return MMC_OTHER_VERSION;
    n = mmc__receive(c, body, sizeof body);
    mmc__cursor cursor = {body, body + n, 0};
    if (!n) return MMC_NO_SERVICE;
    if (mmc__next(&cursor) != 'a' || cursor.value < 7) return MMC_REFUSED;
    if (!mmc__is_text(&cursor, "Welcome")) return MMC_REFUSED;
    return mmc__skip(&cursor, 5) ? mmc__parse_ring(&cursor, ring) : MMC_OTHER_VERSION;
}

int mmc_connect(mmc_connection *c, const char *run_dir, const char *name, int timeout_s, mmc_ring *ring)
{
    uint8_t random[16];
    struct sockaddr_un address = {AF_UNIX, ""};
    const struct timeval timeout = {timeout_s, 0};
    memset(c, 0, sizeof *c);
    memset(ring, 0, sizeof *ring);
    c->fd = c->lock_fd = -1;
    if (strlen(run_dir) > 90 || strlen(name) > 32 || getrandom(random, 16, 0) != 16) return MMC_NO_SERVICE;
    for (int i = 0; i < 16; i++) snprintf(c->client_id + 2 * i, 3, "%02x", random[i]);
    snprintf(c->lock_path, sizeof c->lock_path, "%s/clients/%s.lock", run_dir, c->client_id);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/client.sock", run_dir);
    int outcome = MMC_NO_SERVICE;
    c->lock_fd = open(c->lock_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd >= 0 && c->lock_fd >= 0 && !mmc__lock(c->lock_fd, 0, F_WRLCK) &&
        !setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) &&
        !setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) &&
        !connect(c->fd, (const struct sockaddr *)&address, sizeof address))
        outcome = mmc__greet(c, name, ring);
    if (outcome != MMC_OK) mmc_disconnect(c);
    return outcome;
}

int mmc_register(mmc_connection *c, const mmc_reader *r)
{
    uint8_t body[4096];
    const uint64_t numbers[4] = {++c->num_requests, r->ring.epoch, r->reader_id, r->incarnation};
    size_t n = 0;
    body[n++] = 0x96;
    n += mmc__put(body + n, "RegisterReader", 0);
    n += mmc__put(body + n, c->client_id, 0);
    for (int i = 0; i < 4; i++) n += mmc__put(body + n, NULL, numbers[i]);
    if (c->fd < 0 || !mmc__send(c, body, n)) return MMC_NO_SERVICE;
    while ((n = mmc__receive(c, body, sizeof body))) {
        mmc__cursor cursor = {body, body + n, 0};
        if (mmc__next(&cursor) != 'a') return MMC_OTHER_VERSION;
        if (!mmc__is_text(&cursor, "ReaderRegistered")) continue;
        if (mmc__next(&cursor) == 'u' && cursor.value == c->num_requests)
            return mmc__next(&cursor) == 'b' && cursor.value ? MMC_OK : MMC_REFUSED;
    }
    return MMC_NO_SERVICE;
}

void mmc_drop(mmc_connection *c)
{
    if (c->fd >= 0) close(c->fd);
    if (c->lock_fd >= 0) close(c->lock_fd);
    c->fd = c->lock_fd = -1;
}

void mmc_disconnect(mmc_connection *c)
{
    if (c->lock_fd >= 0) unlink(c->lock_path); /* while it is locked */
    mmc_drop(c);
}
#endif
