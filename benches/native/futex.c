/* The floor: one process stamps a shared page and wakes another that sleeps in FUTEX_WAIT. No payload, no Python. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct page {
    _Atomic uint32_t sequence; /* the futex word: how many stamps were published */
    uint32_t unused;
    _Atomic int64_t stamp_ns;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void futex_send(struct page *page, uint64_t count, int64_t period_ns)
{
    int64_t due = now_ns() + period_ns;
    for (uint64_t i = 0; i < count; i++, due += period_ns) {
        struct timespec t = {due / 1000000000, due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) != 0) {
        }
        page->stamp_ns = now_ns();
        page->sequence++;
        syscall(SYS_futex, &page->sequence, FUTEX_WAKE, 1, 0, 0, 0);
    }
}

/* A stamp that was replaced before the receiver ran is counted with the one that replaced it: waits_ns[] gets one
 * entry per wake-up, the number of entries is returned. Ends with the stamp number `count`. */
uint64_t futex_receive(struct page *page, uint64_t count, int64_t *waits_ns)
{
    uint64_t entries = 0;
    for (uint32_t seen = 0; seen < count; entries++) {
        while (page->sequence == seen)
            syscall(SYS_futex, &page->sequence, FUTEX_WAIT, seen, 0, 0, 0);
        seen = page->sequence;
        waits_ns[entries] = now_ns() - page->stamp_ns;
    }
    return entries;
}
