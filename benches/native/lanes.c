/* What records would cost if a library cost nothing: copy them into the slots of a lane, and count. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Copies all `samples` sources into the lane's slots one after the other and moves *head behind each. A lane that is
 * full is waited for until half of it was read: *tail says how far. sources[sample * leaves + leaf] is the address of
 * one leaf of one sample; in a slot they lie one after the other. */
void copy_into_lane(char *lane, const char *const *sources, uint64_t samples, const uint64_t *leaf_bytes,
                    uint64_t leaves, uint64_t slots, uint64_t *head, const uint64_t *tail)
{
    const struct timespec nap = {0, 20000};
    uint64_t slot_bytes = 0, at = *head;
    for (uint64_t leaf = 0; leaf < leaves; leaf++)
        slot_bytes += leaf_bytes[leaf];
    for (uint64_t sample = 0; sample < samples; sample++) {
        if (at - __atomic_load_n(tail, __ATOMIC_ACQUIRE) == slots)
            while (at - __atomic_load_n(tail, __ATOMIC_ACQUIRE) > slots / 2)
                nanosleep(&nap, NULL);
        char *to = lane + at % slots * slot_bytes;
        for (uint64_t leaf = 0; leaf < leaves; leaf++) {
            memcpy(to, sources[sample * leaves + leaf], leaf_bytes[leaf]);
            to += leaf_bytes[leaf];
        }
        __atomic_store_n(head, ++at, __ATOMIC_RELEASE);
    }
}
