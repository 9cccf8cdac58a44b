/*
 * agenttrace-hook RUNTIME: hands one hook event of a coding agent to the collector, or to the spool when
 * no collector answers. An agent waits for this program before and after every tool call, so it starts
 * nothing, links nothing beyond libc, bounds every wait, and always exits 0.
 *
 * README.md beside this file is the contract (wire format, spool format, limits); protocol.py holds the
 * same constants for the collector.
 */
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WIRE_VERSION 1
#define MAX_BODY_BYTES 33554432
#define TIMEOUT_MS 2000
#define STDIN_IDLE_MS 5000
#define SPOOL_MAX_BYTES 268435456
#define SPOOL_MAX_FILES 10000
#define SPOOL_BLOCK_BYTES 4096
#define SPOOL_FULL_TRUSTED_MS 1000
#define DROPPED_NAMED_BYTES 4194304
#define DROPPED_MAX_BYTES 8388608

#define MAX_TIMEOUT_MS 600000
#define MAX_PATH 4096
#define MAX_ANSWER_HEAD 65536
#define ID_LENGTH 36

struct delivery {
    char id[ID_LENGTH + 1];
    const char *runtime;
    long parent;
    const unsigned char *body;
    size_t body_size;
    uint64_t payload_size;
    bool oversized;
};

/* ---- time, signals, waiting ---------------------------------------------------------------------- */

static int64_t clock_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

static int stop_pipe[2] = {-1, -1};

static void on_stop(int signal_number)
{
    int saved = errno;
    (void)signal_number;
    if (write(stop_pipe[1], "", 1) < 0) {
        /* The deadline ends the wait instead. */
    }
    errno = saved;
}

/* True when fd is ready. False at the deadline, or when a signal asked to stop: what is in hand then goes
 * to the spool while the runtime's patience lasts. */
static bool wait_for(int fd, short events, int64_t deadline)
{
    struct pollfd waited[2] = {{.fd = fd, .events = events}, {.fd = stop_pipe[0], .events = POLLIN}};
    for (;;) {
        int64_t left = deadline - now_ms();
        int ready = poll(waited, 2, left > 0 ? (int)left : 0);
        if (ready < 0 && errno == EINTR)
            continue;
        return ready > 0 && waited[1].revents == 0;
    }
}

static void settle(void)
{
    /* A descriptor that came closed would be given to the socket or a spool file, and the decision or the
     * payload would be written into it. The root folder is there even in a sandbox without /dev, reads as
     * nothing and takes no writes. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_RDONLY) < 0)
            return;

    struct sigaction ignore = {.sa_handler = SIG_IGN}, stop = {.sa_handler = on_stop};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
    if (pipe(stop_pipe) == 0) {
        static const int asked[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
            sigaction(asked[i], &stop, NULL);
    }
    umask(077);
}

/* ---- settings ------------------------------------------------------------------------------------ */

static uint64_t env_number(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = getenv(name);
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || length > 18 || strspn(text, "0123456789") != length)
        return otherwise;
    uint64_t value = strtoull(text, NULL, 10);
    return value <= most ? value : most;
}

static const char *env_path(const char *name)
{
    /* Hooks start in whatever folder the agent is in: a relative path would mean a new place each time. */
    const char *text = getenv(name);
    return text && text[0] == '/' ? text : NULL;
}

static const char *home_folder(void)
{
    static char path[MAX_PATH];
    const char *home = env_path("AGENTTRACE_HOME");
    if (home)
        return home;
    home = env_path("HOME");
    if (!home) {
        const struct passwd *user = getpwuid(geteuid());
        home = user ? user->pw_dir : NULL;
    }
    if (!home || home[0] != '/')
        return NULL;
    int length = snprintf(path, sizeof path, "%s/.agenttrace", home);
    return length > 0 && (size_t)length < sizeof path ? path : NULL;
}

static bool valid_runtime(const char *name)
{
    size_t length = strlen(name);
    return length >= 1 && length <= 32 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == length;
}

/* ---- delivery id --------------------------------------------------------------------------------- */

static void fill_random(unsigned char *out, size_t size)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool filled = fd >= 0 && read(fd, out, size) == (ssize_t)size;
    if (fd >= 0)
        close(fd);
    if (filled)
        return;
    /* A sandbox without /dev: ids need to differ, not to be unguessable. */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t state = (uint64_t)t.tv_nsec ^ (uint64_t)t.tv_sec << 30 ^ (uint64_t)getpid() << 40;
    for (size_t i = 0; i < size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        out[i] = (unsigned char)(state >> 56);
    }
}

/* UUIDv7 (RFC 9562) with the low 16 bits zero: the collector numbers the events of a delivery there. */
static void make_delivery_id(char out[ID_LENGTH + 1])
{
    unsigned char b[16] = {0};
    uint64_t ms = (uint64_t)clock_ms(CLOCK_REALTIME);
    fill_random(b + 6, 8);
    for (int i = 0; i < 6; i++)
        b[i] = (unsigned char)(ms >> (40 - 8 * i));
    b[6] = 0x70 | (b[6] & 0x0f);
    b[8] = 0x80 | (b[8] & 0x3f);
    snprintf(out, ID_LENGTH + 1, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* ---- SHA-256 (FIPS 180-4), for payloads too large to pass on --------------------------------------- */

struct sha256 {
    uint32_t state[8];
    uint64_t total;
    unsigned char pending[64];
};

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t state[8], const unsigned char *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void sha256_add(struct sha256 *h, const unsigned char *p, size_t size)
{
    if (h->total == 0)
        memcpy(h->state,
               (const uint32_t[8]){0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                   0x1f83d9ab, 0x5be0cd19},
               sizeof h->state);
    size_t held = h->total % 64;
    h->total += size;
    if (held > 0) {
        size_t taken = size < 64 - held ? size : 64 - held;
        memcpy(h->pending + held, p, taken);
        p += taken;
        size -= taken;
        if (held + taken < 64)
            return;
        sha256_block(h->state, h->pending);
    }
    for (; size >= 64; p += 64, size -= 64)
        sha256_block(h->state, p);
    memcpy(h->pending, p, size);
}

static void sha256_finish(struct sha256 *h, char hex[65])
{
    uint64_t bits = h->total * 8;
    unsigned char end[72] = {0x80};
    size_t zeros = (119 - h->total % 64) % 64;
    for (size_t i = 0; i < 8; i++)
        end[1 + zeros + i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(h, end, 1 + zeros + 8);
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", (unsigned)h->state[i]);
}

/* ---- standard input ------------------------------------------------------------------------------ */

/* Reads to the end, or until nothing has come for STDIN_IDLE_MS (a runtime that forgot to close the pipe must
 * not wait for us for ever). A payload over MAX_BODY_BYTES, or larger than the memory to be had, is hashed to
 * its end and becomes a marker. */
static void read_payload(struct delivery *d)
{
    static unsigned char first[65536];
    static char marker[160];
    static struct sha256 hash;
    unsigned char *buffer = first;
    size_t room = sizeof first, used = 0;

    for (;;) {
        if (used == room) {
            size_t wanted = room * 4 < MAX_BODY_BYTES + 1 ? room * 4 : MAX_BODY_BYTES + 1;
            unsigned char *larger = NULL;
            if (!d->oversized && used <= MAX_BODY_BYTES)
                larger = buffer == first ? malloc(wanted) : realloc(buffer, wanted);
            if (larger) {
                if (buffer == first)
                    memcpy(larger, first, used);
                buffer = larger;
                room = wanted;
            } else {
                d->oversized = true;
                sha256_add(&hash, buffer, used);
                used = 0;
            }
        }
        if (!wait_for(STDIN_FILENO, POLLIN, now_ms() + STDIN_IDLE_MS))
            break;
        ssize_t got = read(STDIN_FILENO, buffer + used, room - used);
        if (got > 0)
            used += (size_t)got;
        else if (got == 0 || (errno != EINTR && errno != EAGAIN))
            break;
    }
    if (used > MAX_BODY_BYTES)
        d->oversized = true;
    d->body = buffer;
    d->body_size = used;
    d->payload_size = used;
    if (d->oversized) {
        char hex[65];
        sha256_add(&hash, buffer, used);
        d->payload_size = hash.total;
        sha256_finish(&hash, hex);
        d->body = (const unsigned char *)marker;
        d->body_size =
            (size_t)snprintf(marker, sizeof marker, "{\"agenttrace_oversized\": {\"size_bytes\": %llu, \"sha256\": \"%s\"}}",
                             (unsigned long long)d->payload_size, hex);
    }
}

/* ---- collector ----------------------------------------------------------------------------------- */

static int dial(const char *path, int64_t deadline)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = path;
    if (strlen(path) >= sizeof address.sun_path) {
        /* The limit is on the name that is given, not on where the file is: from its own folder it is short.
         * Nothing after this uses a relative path. */
        char folder[MAX_PATH];
        name = strrchr(path, '/') + 1;
        size_t length = (size_t)(name - path);
        if (length >= sizeof folder || strlen(name) >= sizeof address.sun_path)
            return -1;
        memcpy(folder, path, length);
        folder[length] = '\0';
        if (chdir(folder) != 0)
            return -1;
    }
    memcpy(address.sun_path, name, strlen(name) + 1);

    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    /* On Linux a full backlog makes connect wait, and only this bounds it. */
    int64_t left = deadline - now_ms();
    struct timeval limit = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
    if (left <= 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool send_request(int fd, const struct delivery *d, int64_t deadline)
{
    char head[512], oversized[64] = "";
    if (d->oversized)
        snprintf(oversized, sizeof oversized, "X-AgentTrace-Oversized: %llu\r\n", (unsigned long long)d->payload_size);
    int length = snprintf(head, sizeof head,
                          "POST /hooks/%s HTTP/1.1\r\n"
                          "Host: agenttrace\r\n"
                          "Content-Type: application/json\r\n"
                          "Content-Length: %zu\r\n"
                          "X-AgentTrace-Delivery: %s\r\n"
                          "X-AgentTrace-Pid: %ld\r\n"
                          "%s"
                          "Connection: close\r\n\r\n",
                          d->runtime, d->body_size, d->id, d->parent, oversized);
    struct iovec parts[2] = {{head, (size_t)length}, {(void *)d->body, d->body_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    while (parts[0].iov_len + parts[1].iov_len > 0) {
        if (!wait_for(fd, POLLOUT, deadline))
            return false;
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return false;
        }
        for (int i = 0; i < 2; i++) {
            size_t gone = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + gone;
            parts[i].iov_len -= gone;
            sent -= (ssize_t)gone;
        }
    }
    return true;
}

struct answer {
    int status;
    const char *body;
    size_t body_size;
};

enum progress { UNFINISHED, FINISHED, UNUSABLE };

static enum progress parse_answer(const char *text, size_t size, bool ended, struct answer *out)
{
    const char *end = NULL;
    for (size_t i = 0; i + 4 <= size && i < MAX_ANSWER_HEAD; i++)
        if (memcmp(text + i, "\r\n\r\n", 4) == 0) {
            end = text + i + 4;
            break;
        }
    if (!end)
        return ended || size >= MAX_ANSWER_HEAD ? UNUSABLE : UNFINISHED;
    if (end - text < 16 || memcmp(text, "HTTP/1.", 7) != 0 || text[8] != ' ')
        return UNUSABLE;
    out->status = 0;
    for (int i = 9; i < 12; i++) {
        if (text[i] < '0' || text[i] > '9')
            return UNUSABLE;
        out->status = out->status * 10 + (text[i] - '0');
    }

    size_t declared = 0, there = size - (size_t)(end - text);
    bool has_length = out->status == 204;
    const char *line = memchr(text, '\n', (size_t)(end - text));
    for (line++; line < end - 2; line = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1) {
        if (strncasecmp(line, "transfer-encoding:", 18) == 0)
            return UNUSABLE;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            const char *digit = line + 15;
            while (*digit == ' ' || *digit == '\t')
                digit++;
            for (declared = 0; *digit >= '0' && *digit <= '9'; digit++) {
                declared = declared * 10 + (size_t)(*digit - '0');
                if (declared > MAX_BODY_BYTES)
                    return UNUSABLE;
            }
            has_length = true;
        }
    }
    out->body = end;
    out->body_size = has_length ? declared : there;
    if (has_length)
        return there >= declared ? FINISHED : ended ? UNUSABLE : UNFINISHED;
    return ended ? FINISHED : UNFINISHED;
}

/* The buffer behind the answer lives until the process ends. */
static bool read_answer(int fd, struct answer *out, int64_t deadline)
{
    static char first[16384];
    char *buffer = first;
    size_t room = sizeof first, used = 0;
    for (;;) {
        if (used == room) {
            char *larger = room <= MAX_BODY_BYTES ? malloc(room * 4) : NULL;
            if (!larger)
                return false;
            memcpy(larger, buffer, used);
            buffer = larger;
            room *= 4;
        }
        if (!wait_for(fd, POLLIN, deadline))
            return false;
        ssize_t got = recv(fd, buffer + used, room - used, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return false;
        }
        used += (size_t)got;
        enum progress progress = parse_answer(buffer, used, got == 0, out);
        if (progress != UNFINISHED)
            return progress == FINISHED;
    }
}

static bool is_decision(const struct answer *answer)
{
    /* Empty and {} both mean that the collector has nothing to say. */
    char solid[3];
    size_t found = 0;
    for (size_t i = 0; i < answer->body_size && found < sizeof solid; i++)
        if (!memchr(" \t\r\n", answer->body[i], 4))
            solid[found++] = answer->body[i];
    return answer->status == 200 && found > 0 && !(found == 2 && memcmp(solid, "{}", 2) == 0);
}

static void print_decision(const struct answer *answer, int64_t deadline)
{
    const char *p = answer->body;
    size_t left = answer->body_size;
    while (left > 0 && wait_for(STDOUT_FILENO, POLLOUT, deadline)) {
        /* A ready pipe takes PIPE_BUF bytes at once; more could block past the deadline. */
        ssize_t written = write(STDOUT_FILENO, p, left < PIPE_BUF ? left : PIPE_BUF);
        if (written > 0) {
            p += written;
            left -= (size_t)written;
        } else if (written == 0 || (errno != EINTR && errno != EAGAIN)) {
            return;
        }
    }
}

/* True when the collector has taken the delivery: a whole answer with a 2xx status. */
static bool post(const struct delivery *d, const char *home)
{
    char beside_home[MAX_PATH];
    const char *path = env_path("AGENTTRACE_SOCKET");
    if (!path) {
        int length = home ? snprintf(beside_home, sizeof beside_home, "%s/collector.sock", home) : -1;
        if (length < 0 || (size_t)length >= sizeof beside_home)
            return false;
        path = beside_home;
    }
    int64_t deadline = now_ms() + (int64_t)env_number("AGENTTRACE_HOOK_TIMEOUT_MS", TIMEOUT_MS, MAX_TIMEOUT_MS);
    struct answer answer;
    int fd = dial(path, deadline);
    if (fd < 0)
        return false;
    bool taken = send_request(fd, d, deadline) && read_answer(fd, &answer, deadline) && answer.status / 100 == 2;
    if (taken && is_decision(&answer))
        print_decision(&answer, deadline);
    close(fd);
    return taken;
}

/* ---- spool --------------------------------------------------------------------------------------- */

/*
 * How full the spool is stands in the lengths of two files to which each spooled delivery appends, one byte
 * a file and one byte a block: O_APPEND makes that exact between processes without a lock, and reading it
 * costs no scan. The counters only grow; the collector empties the folder without touching them. So when they
 * say full the folder is counted once and they are set right, and a folder that really is full is not
 * counted again for SPOOL_FULL_TRUSTED_MS.
 */
struct spool {
    int folder, files, blocks;
    uint64_t max_files, max_blocks;
};

static uint64_t blocks_of(uint64_t size)
{
    return (size + SPOOL_BLOCK_BYTES - 1) / SPOOL_BLOCK_BYTES;
}

/* Only a folder that is ours, no symlink, and closed to others: payloads are raw. */
static int enter(int at, const char *name)
{
    struct stat st;
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(at, name, flags);
    if (fd < 0 && errno == ENOENT) {
        mkdirat(at, name, 0700);
        fd = openat(at, name, flags);
    }
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || ((st.st_mode & 077) != 0 && fchmod(fd, 0700) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int open_spool(const char *home, const char *runtime)
{
    char path[MAX_PATH];
    int length = snprintf(path, sizeof path, "%s/spool", home);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    int root = enter(AT_FDCWD, path);
    if (root < 0) {
        mkdir(home, 0700);
        root = enter(AT_FDCWD, path);
    }
    if (root < 0)
        return -1;
    int folder = enter(root, runtime);
    close(root);
    return folder;
}

static int open_appending(int folder, const char *name)
{
    return openat(folder, name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static uint64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Appends count bytes and returns the length the file then had: a ticket no other process holds. */
static uint64_t append(int fd, uint64_t count)
{
    static const char zeros[MAX_BODY_BYTES / SPOOL_BLOCK_BYTES + 2];
    off_t at = write(fd, zeros, (size_t)count) < 0 ? -1 : lseek(fd, 0, SEEK_CUR);
    return at < 0 ? 0 : (uint64_t)at;
}

static bool trusted_full(int folder, int64_t now)
{
    char text[24] = "";
    int fd = openat(folder, ".full", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    int64_t seen = got > 0 ? strtoll(text, NULL, 10) : 0;
    return now >= seen && now - seen < SPOOL_FULL_TRUSTED_MS;
}

/* Counts what is there, sets the counters by it, and tells whether more_files and more_blocks still fit. */
static bool recount(const struct spool *s, uint64_t more_files, uint64_t more_blocks)
{
    int64_t now = clock_ms(CLOCK_REALTIME);
    if (trusted_full(s->folder, now))
        return false;
    int fd = openat(s->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing)
        return false;
    uint64_t files = 0, blocks = 0;
    const struct dirent *entry;
    while (files <= s->max_files && blocks <= s->max_blocks && (entry = readdir(listing)) != NULL) {
        struct stat st;
        if (entry->d_name[0] == '.' && strncmp(entry->d_name, ".tmp.", 5) != 0)
            continue;
        if (fstatat(s->folder, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        files++;
        blocks += blocks_of((uint64_t)st.st_size);
    }
    closedir(listing);
    if (ftruncate(s->files, (off_t)files) != 0 || ftruncate(s->blocks, (off_t)blocks) != 0)
        return false;
    if (files + more_files <= s->max_files && blocks + more_blocks <= s->max_blocks)
        return true;
    int mark = openat(s->folder, ".full", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (mark >= 0) {
        dprintf(mark, "%lld\n", (long long)now);
        close(mark);
    }
    return false;
}

static bool fits(const struct spool *s, uint64_t files, uint64_t blocks)
{
    return files <= s->max_files && blocks <= s->max_blocks;
}

static bool write_file(int folder, const char *name, const char *head, const struct delivery *d)
{
    size_t length = strlen(head);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    struct iovec parts[2] = {{(void *)head, length}, {(void *)d->body, d->body_size}};
    ssize_t written = writev(fd, parts, 2);
    bool whole = written >= (ssize_t)length;
    for (size_t done = whole ? (size_t)written - length : 0; whole && done < d->body_size; done += (size_t)written) {
        written = write(fd, d->body + done, d->body_size - done);
        whole = written > 0;
    }
    /* No fdatasync: the page cache outlives this process and the agent, and waiting for the disk would cost
     * each tool call more than all the rest together. Only a power loss can take the newest files. */
    return close(fd) == 0 && whole;
}

static void count_drop(int folder, const struct delivery *d)
{
    int fd = open_appending(folder, ".dropped");
    if (fd < 0)
        return;
    uint64_t size = size_of(fd), payload = d->payload_size < 9999999999u ? d->payload_size : 9999999999u;
    char record[64];
    int length = 0;
    if (size < DROPPED_NAMED_BYTES)
        length = snprintf(record, sizeof record, "%s %010llu\n", d->id, (unsigned long long)payload);
    else if (size < DROPPED_MAX_BYTES)
        length = snprintf(record, sizeof record, "+");
    if (length > 0 && write(fd, record, (size_t)length) < 0) {
        /* A disk too full for this record: the collector's own counts show the gap. */
    }
    close(fd);
}

static void spool(const struct delivery *d, const char *home)
{
    char temporary[ID_LENGTH + 6], head[96], oversized[40] = "";
    struct spool s = {.max_files = env_number("AGENTTRACE_SPOOL_MAX_FILES", SPOOL_MAX_FILES, UINT64_MAX),
                      .max_blocks = env_number("AGENTTRACE_SPOOL_MAX_BYTES", SPOOL_MAX_BYTES, UINT64_MAX) /
                                    SPOOL_BLOCK_BYTES};
    s.folder = open_spool(home, d->runtime);
    if (s.folder < 0)
        return;
    snprintf(temporary, sizeof temporary, ".tmp.%s", d->id);
    s.files = open_appending(s.folder, ".files");
    s.blocks = open_appending(s.folder, ".blocks");

    if (d->oversized)
        snprintf(oversized, sizeof oversized, " oversized=%llu", (unsigned long long)d->payload_size);
    snprintf(head, sizeof head, "agenttrace-spool/1 pid=%ld%s\n", d->parent, oversized);
    uint64_t need = blocks_of(strlen(head) + d->body_size);
    bool kept = s.files >= 0 && s.blocks >= 0 &&
                (fits(&s, size_of(s.files) + 1, size_of(s.blocks) + need) || recount(&s, 1, need)) &&
                write_file(s.folder, temporary, head, d) &&
                /* Asked again with tickets in hand, since others may have taken the last places meanwhile. */
                (fits(&s, append(s.files, 1), append(s.blocks, need)) || recount(&s, 0, 0)) &&
                renameat(s.folder, temporary, s.folder, d->id) == 0;
    if (!kept) {
        unlinkat(s.folder, temporary, 0);
        count_drop(s.folder, d);
    }
}

/* ---- main ---------------------------------------------------------------------------------------- */

static void usage(void)
{
    dprintf(STDERR_FILENO, "usage: agenttrace-hook RUNTIME < event.json\n"
                           "Hands one hook event to the AgentTrace collector; agent runtimes start it. RUNTIME: "
                           "claude_code, codex, hermes ...\n");
}

int main(int argc, char **argv)
{
    settle();
    struct delivery d = {.runtime = argc > 1 ? argv[1] : "", .parent = (long)getppid()};
    if (strcmp(d.runtime, "--version") == 0) {
        dprintf(STDERR_FILENO, "agenttrace-hook, wire format %d, native\n", WIRE_VERSION);
        return 0;
    }
    if (strcmp(d.runtime, "--help") == 0 || isatty(STDIN_FILENO)) {
        usage();
        return 0;
    }
    make_delivery_id(d.id);
    /* Read even what cannot be used: a runtime that meets a closed pipe may call the hook broken. */
    read_payload(&d);
    if (!valid_runtime(d.runtime))
        return 0;
    const char *home = home_folder();
    if (!post(&d, home) && home)
        spool(&d, home);
    return 0;
}
