//! Random rows: a counter and a key, hashed. No state but the counter, so that any thread can draw any row of a batch.
//!
//! The hash is the output function of SplitMix64 over a Weyl sequence, which passes BigCrush as a generator. A generator
//! with a running state (xoshiro, PCG) would tie a batch to the number of threads that drew it, and a redraw would shift
//! every row behind it. Not for secrets.

/// The golden ratio in 64 bits: odd, and its multiples visit every number.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stream of random numbers, all there at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomStream {
    key: u64,
}

impl RandomStream {
    /// The same seed gives the same stream.
    pub fn of(seed: u64) -> RandomStream {
        RandomStream { key: mix(seed ^ GAMMA) }
    }

    /// The number at `counter`, below `limit`. Its bias is below `limit` / 2⁶⁴.
    #[inline]
    pub fn below(self, limit: usize, counter: u64) -> usize {
        let number = mix(self.key.wrapping_add(counter.wrapping_add(1).wrapping_mul(GAMMA)));
        ((number as u128 * limit as u128) >> 64) as usize
    }

    /// Another stream, for what happens at `counter` besides.
    pub fn branch(self, counter: u64) -> RandomStream {
        RandomStream { key: mix(self.key ^ mix(counter.wrapping_add(GAMMA))) }
    }
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_drawn_about_equally_often() {
        let stream = RandomStream::of(7);
        let mut counts = [0u32; 100];
        (0..1_000_000).for_each(|counter| counts[stream.below(100, counter)] += 1);
        let chi: f64 = counts.iter().map(|&n| (n as f64 - 10_000.0).powi(2) / 10_000.0).sum();
        assert!((50.0..160.0).contains(&chi), "chi² of 99 degrees of freedom is {chi}");
    }

    #[test]
    fn neighbouring_seeds_and_branches_share_nothing() {
        let draws = |stream: RandomStream| (0..64).map(|n| stream.below(1 << 20, n)).collect::<Vec<_>>();
        let seeds: Vec<_> = (0..50).map(|seed| draws(RandomStream::of(seed))).collect();
        let branches: Vec<_> = (0..50).map(|n| draws(RandomStream::of(3).branch(n))).collect();
        let mut all = [seeds, branches].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 100);
        assert_eq!(draws(RandomStream::of(9)), draws(RandomStream::of(9)));
    }
}
