/* The limit: copy samples leaf by leaf into a ring-shaped buffer, no locks, no hand-off, nobody reads.
 *
 * The ring is laid out as batches; within a batch each leaf is contiguous, as in the ring that is being compared:
 *
 *   batch 0: leaf 0 x batch_size | leaf 1 x batch_size | ... || batch 1: ...
 */
#include <stdint.h>
#include <string.h>

/* Copies `rounds` times all `samples` sources into the ring's slots one after the other from *position on, and adds to
 * *copied after each round. sources[sample * leaves + leaf] is the address of one leaf of one sample. */
void copy_samples(char *ring, const char *const *sources, uint64_t samples, const uint64_t *leaf_bytes,
                  uint64_t leaves, uint64_t batch_size, uint64_t slots, uint64_t rounds,
                  uint64_t *position, volatile uint64_t *copied)
{
    uint64_t batch_bytes = 0, at = *position;
    for (uint64_t leaf = 0; leaf < leaves; leaf++)
        batch_bytes += leaf_bytes[leaf] * batch_size;
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint64_t sample = 0; sample < samples; sample++) {
            char *leaf_start = ring + at / batch_size * batch_bytes;
            uint64_t row = at % batch_size;
            for (uint64_t leaf = 0; leaf < leaves; leaf++) {
                memcpy(leaf_start + row * leaf_bytes[leaf], sources[sample * leaves + leaf], leaf_bytes[leaf]);
                leaf_start += leaf_bytes[leaf] * batch_size;
            }
            if (++at == slots)
                at = 0;
        }
        *copied += samples;
    }
    *position = at;
}
