// A load client for any broker that speaks RocketMQ's remoting frame, so that every broker is
// driven by the same program. It checks the code of every answer.
//
//   load send  PORT topic=T n=100000 conns=4 window=32 size=1024 queues=4 codec=json|rmq batch=0
//   load pull  PORT topic=T n=100000 conns=4 max=32 queues=4     reads the queues again and again
//   load count PORT topic=T queues=4                             reads every queue to its end once:
//                                    offsets must be gapless and every body must match its CRC
//   load e2e   PORT topic=T n=2000 gap_us=1000                   paced sends, one long poll: receipt
//
// polls=1: look for answers all the time instead of sleeping until one comes. Waking a core that
// sleeps can take longer than the broker does, and is then what is measured.
//
// Prints one JSON object. Exit 0: all well; 1: a bad answer, a gap or a broken body; 2: usage or no
// connection; 4: the broker went away or was silent for 20 s; 5: an answer that cannot be read.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RING = 1 << 16, READ_CAP = 20 << 20, READ_PIECE = 256 << 10, WRITE_CAP = 4 << 20, SILENCE_S = 20, VAIN_MAX = 100 };
typedef enum { SEND, PULL, COUNT, E2E } Mode;

typedef struct {
    int fd, queue, ended, sends;
    long opaque, outstanding, offset, vain;
    size_t have, write_len, write_at;
    // Of the answer that is being read:
    int in_body, code;
    long answered, next, records;
    size_t body_left;
    char *read_buf, *write_buf;
    double *sent_at;  // by opaque, modulo RING
} Conn;

static int arg_count;
static char **arg_values;
static Mode mode;
static int port, binary;
static const char *topic, *group;
static char run_id[9];
static long total, conns, window_, size, queues, max_nums, batch, gap_us, polls;
static char *body;
static long serial, sent, done, messages, bytes_in, bad, gaps, broken, ended;
static int first_bad;
static char bad_text[400];
static double *latency, began;
static long latencies, latency_cap;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static long wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000;
}

static const char *arg(const char *name, const char *fallback) {
    size_t n = strlen(name);
    for (int i = 3; i < arg_count; i++)
        if (!strncmp(arg_values[i], name, n) && arg_values[i][n] == '=') return arg_values[i] + n + 1;
    return fallback;
}

static long number(const char *name, const char *fallback) { return atol(arg(name, fallback)); }

static void record_latency(double seconds) {
    if (latencies < latency_cap) latency[latencies++] = seconds;
}

static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 50; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!connect(fd, (struct sockaddr *)&to, sizeof to)) return fd;
        close(fd);
        usleep(100000);
    }
    perror("connect");
    exit(2);
}

static size_t put_int(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
    return 4;
}

static size_t put_short(char *at, uint16_t value) {
    value = htons(value);
    memcpy(at, &value, 2);
    return 2;
}

static uint32_t get_int(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static uint64_t get_long(const char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return be64toh(value);
}

typedef const char *Field[2];

static size_t binary_header(char *h, int code, long opaque, Field *fields, int count) {
    size_t ext = 0;
    put_short(h, code);
    h[2] = 0;  // JAVA
    put_short(h + 3, 435);
    put_int(h + 5, opaque);
    memset(h + 9, 0, 8);  // flag, remark
    for (int i = 0; i < count; i++) {
        char *at = h + 21 + ext;
        size_t name = strlen(fields[i][0]), value = strlen(fields[i][1]);
        put_short(at, name);
        memcpy(at + 2, fields[i][0], name);
        put_int(at + 2 + name, value);
        memcpy(at + 6 + name, fields[i][1], value);
        ext += 6 + name + value;
    }
    put_int(h + 17, ext);
    return 21 + ext;
}

static size_t json_header(char *h, int code, long opaque, Field *fields, int count) {
    size_t n = sprintf(h, "{\"code\":%d,\"extFields\":{", code);
    for (int i = 0; i < count; i++) {
        n += sprintf(h + n, "%s\"%s\":\"", i ? "," : "", fields[i][0]);
        for (const char *s = fields[i][1]; *s; s++)
            n += *s < ' ' ? sprintf(h + n, "\\u%04x", *s) : (h[n] = *s, 1);
        h[n++] = '"';
    }
    return n + sprintf(h + n, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%ld,"
                       "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}", opaque);
}

// The frame without its body, whose length is given; the caller copies the body behind it.
static size_t frame(char *at, int code, long opaque, Field *fields, int count, size_t body_size) {
    size_t n = (binary ? binary_header : json_header)(at + 8, code, opaque, fields, count);
    put_int(at, 4 + n + body_size);
    put_int(at + 4, n | (binary ? 1u << 24 : 0));
    return 8 + n;
}

static int properties(char *at) {
    ++serial;
    return sprintf(at, "UNIQ_KEY\1%s%024lX\2WAIT\1true\2TAGS\1TagA\2KEYS\1K%s%lX", run_id, serial,
                   run_id, serial);
}

// The body of SEND_BATCH_MESSAGE: `batch` messages of `size` bytes.
static size_t batch_body(char *at) {
    char props[256];
    size_t n = 0;
    for (long i = 0; i < batch; i++) {
        int props_len = properties(props);
        n += put_int(at + n, 22 + size + props_len);
        n += put_int(at + n, 0);
        n += put_int(at + n, 0);
        n += put_int(at + n, 0);
        n += put_int(at + n, size);
        memcpy(at + n, body, size);
        n += size;
        n += put_short(at + n, props_len);
        memcpy(at + n, props, props_len);
        n += props_len;
    }
    return n;
}

static size_t send_frame(char *at, long opaque, int queue) {
    static char *whole_batch;
    char q[16], t[24], props[256];
    size_t body_size = size;
    const char *content = body;
    sprintf(q, "%d", queue);
    sprintf(t, "%ld", wall_ms());
    if (batch) {
        if (!whole_batch) whole_batch = malloc((size + 512) * batch);
        body_size = batch_body(whole_batch);
        content = whole_batch;
        props[0] = 0;
        strcpy(props, "WAIT\1true");
    } else {
        properties(props);
    }
    Field fields[] = {{"a", group}, {"b", topic}, {"c", "TBW102"}, {"d", "4"}, {"e", q},
                      {"f", "0"}, {"g", t}, {"h", "0"}, {"i", props}, {"j", "0"},
                      {"k", "false"}, {"l", "0"}, {"m", batch ? "true" : "false"}};
    size_t n = frame(at, batch ? 320 : 310, opaque, fields, 13, body_size);
    memcpy(at + n, content, body_size);
    return n + body_size;
}

static size_t pull_frame(char *at, long opaque, int queue, long offset, int suspend) {
    char q[16], o[24], m[16];
    sprintf(q, "%d", queue);
    sprintf(o, "%ld", offset);
    sprintf(m, "%ld", max_nums);
    Field fields[] = {{"consumerGroup", group}, {"topic", topic}, {"queueId", q},
                      {"queueOffset", o}, {"maxMsgNums", m}, {"sysFlag", suspend ? "6" : "4"},
                      {"commitOffset", "0"}, {"suspendTimeoutMillis", suspend ? "15000" : "0"},
                      {"subscription", "*"}, {"subVersion", "0"}, {"expressionType", "TAG"},
                      {"maxMsgBytes", "8388608"}};
    return frame(at, 11, opaque, fields, 12, 0);
}

// The code, opaque and nextBeginOffset of an answer.
static int read_header(char *h, size_t n, int type, long *opaque, long *next) {
    *next = -1;
    if (type == 1) {
        char *found = memmem(h, n, "nextBeginOffset", 15);
        *opaque = (int32_t)get_int(h + 5);
        if (found) *next = atol(found + 19);
        return (int16_t)(get_int(h) >> 16);
    }
    char saved = h[n];
    h[n] = 0;
    char *code = strstr(h, "\"code\":"), *op = strstr(h, "\"opaque\":");
    char *found = strstr(h, "\"nextBeginOffset\":");
    *opaque = op ? atol(op + 9) : -1;
    if (found) *next = atol(found + 18 + (found[18] == '"'));
    int result = code ? atoi(code + 7) : -1;
    h[n] = saved;
    return result;
}

static uint32_t crc32_of(const unsigned char *p, size_t n) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            table[i] = c;
        }
    uint32_t c = ~0u;
    while (n--) c = table[(c ^ *p++) & 255] ^ (c >> 8);
    return ~c;
}

static void check_record(const char *record, uint32_t record_size, long expected_offset) {
    uint32_t body_size = get_int(record + 84);
    if ((long)get_long(record + 20) != expected_offset) gaps++;
    if (get_int(record + 36) & 0x30) return;  // IPv6 hosts: the body stands elsewhere
    if (88 + body_size > record_size ||
        (crc32_of((const unsigned char *)record + 88, body_size) & 0x7fffffff) != get_int(record + 8))
        broken++;
}

// Takes the whole records at `at`; how many bytes they are. What is left of one waits for more.
static size_t read_records(Conn *c, const char *at, size_t have) {
    size_t taken = 0;
    while (taken < c->body_left) {
        if (c->body_left - taken < 91) {
            fprintf(stderr, "an answer does not end with a record\n");
            exit(5);
        }
        if (have - taken < 8) break;
        const char *record = at + taken;
        uint32_t record_size = get_int(record), magic = get_int(record + 4);
        if ((magic != 0xdaa320a7u && magic != 0xdaa320abu) || record_size < 91 ||
            record_size > c->body_left - taken) {
            fprintf(stderr, "bad record: magic %x, size %u\n", magic, record_size);
            exit(5);
        }
        if (have - taken < record_size) break;
        if (mode == COUNT) check_record(record, record_size, c->offset + c->records);
        if (mode == E2E) {
            double stamp;
            memcpy(&stamp, record + 88, sizeof stamp);
            if (stamp >= began && stamp <= now()) record_latency(now() - stamp);  // else an older message
        }
        c->records++;
        taken += record_size;
    }
    return taken;
}

static void note_bad(int code, const char *header, size_t n) {
    bad++;
    if (first_bad) return;
    first_bad = code;
    snprintf(bad_text, sizeof bad_text, "%.*s", (int)n, header);
}

static int is_sender(Conn *c) { return c->sends; }

// The header of an answer is here, its body not yet.
static void on_header(Conn *c, char *frame_at, size_t header_len) {
    uint32_t length = get_int(frame_at), mark = get_int(frame_at + 4);
    char *header = frame_at + 8;
    if (length < 4 + header_len) {
        fprintf(stderr, "an answer of %u bytes with a header of %zu\n", length, header_len);
        exit(5);
    }
    c->code = read_header(header, header_len, mark >> 24, &c->answered, &c->next);
    if (c->code && (is_sender(c) || c->code < 19 || c->code > 21)) note_bad(c->code, header, header_len);
    c->body_left = length - 4 - header_len;
    c->records = 0;
    c->in_body = 1;
}

static void on_answer(Conn *c) {
    double took = now() - c->sent_at[c->answered & (RING - 1)];
    c->in_body = 0;
    c->outstanding--;
    if (is_sender(c)) {
        done += batch ? batch : 1;
        if (mode == SEND) record_latency(took);
    } else if (c->code == 0) {
        messages += c->records;
        c->vain = 0;
        if (mode != E2E) record_latency(took);
        c->offset = c->next;
    } else if (c->code < 19 || c->code > 21) {
        messages = total;
        ended = conns;
    } else if (mode == PULL) {
        // At the end: once more from the start, which moves when the broker deletes old files.
        c->offset = c->code == 21 && c->next > c->offset ? c->next : 0;
        if (++c->vain == VAIN_MAX) {  // all of it is deleted
            c->ended = 1;
            ended++;
        }
    } else if (mode == COUNT && (c->code == 19 || (c->code == 21 && c->next == c->offset))) {
        c->ended = 1;
        ended++;
    } else if (c->next >= 0) {
        c->offset = c->next;
    }
}

// Takes what is whole of the bytes that are here; how many they are.
static size_t take(Conn *c, char *at, size_t have) {
    size_t taken = 0;
    for (;;) {
        size_t rest = have - taken;
        if (!c->in_body) {
            if (rest < 8) return taken;
            size_t header_len = get_int(at + taken + 4) & 0xffffff;
            if (rest < 8 + header_len) return taken;
            on_header(c, at + taken, header_len);
            taken += 8 + header_len;
        } else if (c->body_left) {
            size_t step = !is_sender(c) && c->code == 0 ? read_records(c, at + taken, rest)
                          : rest < c->body_left         ? rest
                                                        : c->body_left;
            if (!step) return taken;
            c->body_left -= step;
            taken += step;
        }
        if (c->in_body && !c->body_left) on_answer(c);
    }
}

static void fill(Conn *c, Conn *all, double *next_send) {
    c->write_at = c->write_len = 0;
    if (mode == SEND) {
        size_t one = (size + 512) * (batch ? batch : 1) + 1024;
        while (c->outstanding < window_ && sent < total &&
               (c->write_len == 0 || c->write_len + one < WRITE_CAP)) {
            c->sent_at[c->opaque & (RING - 1)] = now();
            int queue = (int)((sent / 8 + (c - all)) % queues);
            c->write_len += send_frame(c->write_buf + c->write_len, c->opaque++, queue);
            c->outstanding++;
            sent += batch ? batch : 1;
        }
    } else if (is_sender(c)) {
        if (sent < total && now() >= *next_send && c->outstanding < 1) {
            double stamp = now();
            memcpy(body, &stamp, sizeof stamp);
            c->write_len = send_frame(c->write_buf, c->opaque++, 0);
            c->outstanding++;
            sent++;
            *next_send = *next_send + gap_us / 1e6 < now() ? now() : *next_send + gap_us / 1e6;
        }
    } else if (c->outstanding < 1 && !c->ended) {
        c->sent_at[c->opaque & (RING - 1)] = now();
        c->write_len = pull_frame(c->write_buf, c->opaque++, c->queue, c->offset, mode == E2E);
        c->outstanding++;
    }
}

// 1 when something moved, 0 when not, -1 when the broker went away.
static int write_some(Conn *c, Conn *all, double *next_send) {
    int moved = 0;
    for (;;) {
        if (c->write_at == c->write_len) fill(c, all, next_send);
        if (c->write_at == c->write_len) return moved;
        ssize_t n = write(c->fd, c->write_buf + c->write_at, c->write_len - c->write_at);
        if (n < 0) return errno == EAGAIN ? moved : -1;
        c->write_at += n;
        moved = 1;
        if (c->write_at < c->write_len) return moved;
    }
}

// Answers are read in pieces that stay in the core's cache: one of several MB is not gathered first.
static int read_some(Conn *c) {
    int moved = 0;
    for (;;) {
        size_t room = READ_CAP - c->have;
        if (room > READ_PIECE) room = READ_PIECE;
        ssize_t n = read(c->fd, c->read_buf + c->have, room);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
        if (n < 0) return moved;
        c->have += n;
        bytes_in += n;
        moved = 1;
        size_t taken = take(c, c->read_buf, c->have);
        c->have -= taken;
        if (taken && c->have) memmove(c->read_buf, c->read_buf + taken, c->have);
        if ((size_t)n < room) return moved;
    }
}

static int finished(void) {
    switch (mode) {
    case SEND: return done >= total;
    case PULL: return messages >= total || ended >= conns;
    case COUNT: return ended >= conns;
    default: return latencies >= total;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double share) {
    return latencies ? latency[(long)((latencies - 1) * share)] * 1e6 : 0;
}

static int report(int gone) {
    double seconds = now() - began;
    long n = mode == SEND ? done : mode == E2E ? latencies : messages;
    double mb = (mode == SEND || mode == E2E ? (double)n * size : (double)bytes_in) / 1e6;
    qsort(latency, latencies, sizeof *latency, by_value);
    printf("{\"mode\":\"%s\",\"n\":%ld,\"secs\":%.4f,\"per_s\":%.0f,\"mb_s\":%.1f,\"p50_us\":%.1f,"
           "\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,\"bad\":%ld,\"first_bad\":%d,"
           "\"gaps\":%ld,\"broken\":%ld,\"gone\":%d}\n",
           arg_values[1], n, seconds, n / seconds, mb / seconds, percentile(.5), percentile(.99),
           percentile(.999), percentile(1), bad, first_bad, gaps, broken, gone);
    if (bad) fprintf(stderr, "%s\n", bad_text);
    return gone ? 4 : bad || gaps || broken;
}

static void read_arguments(void) {
    const char *names[] = {"send", "pull", "count", "e2e"};
    int known = 0;
    for (int i = 0; i < 4; i++)
        if (!strcmp(arg_values[1], names[i])) mode = i, known = 1;
    if (!known) {
        fprintf(stderr, "%s: unknown; send, pull, count and e2e are known\n", arg_values[1]);
        exit(2);
    }
    port = atoi(arg_values[2]);
    topic = arg("topic", "LoadTopic");
    group = arg("group", "load_group");
    binary = !strcmp(arg("codec", "json"), "rmq");
    total = number("n", "100000");
    queues = number("queues", "4");
    conns = mode == COUNT ? queues : mode == E2E ? 2 : number("conns", "4");
    window_ = number("window", "32");
    size = number("size", "1024");
    max_nums = number("max", "32");
    batch = number("batch", "0");
    gap_us = number("gap_us", "1000");
    polls = number("polls", "0");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: load send|pull|count|e2e PORT [name=value ...]\n");
        return 2;
    }
    arg_count = argc;
    arg_values = argv;
    read_arguments();
    sprintf(run_id, "%08X", (unsigned)(wall_ms() * 2654435761u) ^ (unsigned)getpid());
    body = malloc(size + 16);
    for (long i = 0; i < size; i++) body[i] = 'a' + (i * 7 + 3) % 26;
    latency_cap = total < 1000 ? 1000 : total;
    latency = malloc(sizeof *latency * latency_cap);
    Conn *all = calloc(conns, sizeof *all);
    int poll = epoll_create1(0);
    for (long i = 0; i < conns; i++) {
        Conn *c = all + i;
        c->fd = dial();
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->read_buf = malloc(READ_CAP + 1);  // a header is ended by a zero for a moment
        c->write_buf = malloc(WRITE_CAP + (size + 512) * (batch ? batch : 1) + 4096);
        c->sent_at = calloc(RING, sizeof(double));
        c->queue = mode == E2E ? 0 : i % queues;
        c->sends = mode == SEND || (mode == E2E && i == 1);
        c->opaque = 1;
        struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = c}};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }
    began = now();
    double last = began, next_send = began + 0.3;
    for (long i = 0; i < conns; i++)
        if (write_some(all + i, all, &next_send) < 0) return report(1);
    int moved = 0;
    while (!finished()) {
        struct epoll_event events[64];
        // Read only sockets that are ready: futile reads would slow the broker on the other core.
        int wait_ms = polls ? 0 : mode != E2E ? 100 : moved ? 0 : 1;
        int count = epoll_wait(poll, events, 64, wait_ms);
        moved = 0;
        for (int i = 0; i < count; i++) {
            Conn *c = events[i].data.ptr;
            int got = read_some(c), wrote = write_some(c, all, &next_send);
            if (wrote < 0 || got < 0) return report(1);
            moved |= wrote | got;
        }
        if (mode == E2E) {
            int wrote = write_some(all + 1, all, &next_send);
            if (wrote < 0) return report(1);
            moved |= wrote;
        }
        if (moved) {
            last = now();
        } else if (now() - last > SILENCE_S) {
            fprintf(stderr, "no progress for %d s: %ld sent, %ld answered, %ld pulled\n", SILENCE_S, sent, done, messages);
            return report(2);
        }
    }
    return report(0);
}
