//! When an item may be inserted, and when one may be sampled: pure arithmetic on the counts of a table.
//!
//! The numbers mean what they mean in Reverb. With *diff* = inserts x `samples_per_insert` - samples, an insert waits
//! while it would bring diff above `max_diff`, and a sample waits while it would bring diff below `min_diff`. Until the
//! table has `min_size` items, nothing is sampled, and every insert is admitted.
//!
//! With `items_per_version`, an insert also waits while the table was given all items that may be made before the weights
//! move on: (version + `versions_ahead` + 1) x `items_per_version` of them.

/// What a table admits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limiter {
    pub min_size: u64,
    /// 0: any number.
    pub samples_per_insert: f64,
    pub min_diff: f64,
    pub max_diff: f64,
    /// 0: any number.
    pub items_per_version: u64,
    pub versions_ahead: u64,
}

/// The counts of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub size: u64,
    pub inserts: u64,
    pub samples: u64,
    pub version: u64,
}

/// Why something has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// There are fewer items than `min_size`, or none.
    ForItems,
    /// Too much was sampled for what was inserted.
    ForInserts,
    /// Too much was inserted for what was sampled.
    ForSamples,
    /// All items were made that these weights may make.
    ForVersion,
}

impl Limiter {
    /// Admits everything once there are so many items.
    pub fn min_size(min_size: u64) -> Limiter {
        let (min_diff, max_diff) = (f64::MIN, f64::MAX);
        Limiter {
            min_size,
            samples_per_insert: 0.0,
            min_diff,
            max_diff,
            items_per_version: 0,
            versions_ahead: 0,
        }
    }

    /// Whether samples are not counted against inserts.
    pub fn is_free(&self) -> bool {
        self.samples_per_insert == 0.0
    }

    fn diff(&self, inserts: u64, samples: u64) -> f64 {
        inserts as f64 * self.samples_per_insert - samples as f64
    }

    /// Whether one item may be inserted.
    pub fn admits_insert(&self, counts: &Counts) -> Result<(), Wait> {
        if self.items_per_version > 0 {
            let may = counts.version.saturating_add(self.versions_ahead).saturating_add(1);
            if counts.inserts >= may.saturating_mul(self.items_per_version) {
                return Err(Wait::ForVersion);
            }
        }
        let fits = self.is_free()
            || counts.size < self.min_size
            || self.diff(counts.inserts + 1, counts.samples) <= self.max_diff;
        if fits { Ok(()) } else { Err(Wait::ForSamples) }
    }

    /// Whether one item may be sampled.
    pub fn admits_sample(&self, counts: &Counts) -> Result<(), Wait> {
        if counts.size < self.min_size.max(1) {
            return Err(Wait::ForItems);
        }
        let fits = self.is_free() || self.diff(counts.inserts, counts.samples + 1) >= self.min_diff;
        if fits { Ok(()) } else { Err(Wait::ForInserts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_two_alternates() {
        let mut queue = Limiter::min_size(1);
        (queue.samples_per_insert, queue.min_diff, queue.max_diff) = (1.0, 0.0, 2.0);
        let counts = |size, inserts, samples| Counts { size, inserts, samples, version: 0 };
        assert_eq!(queue.admits_sample(&counts(0, 0, 0)), Err(Wait::ForItems));
        assert_eq!(queue.admits_insert(&counts(1, 1, 0)), Ok(()));
        assert_eq!(queue.admits_insert(&counts(2, 2, 0)), Err(Wait::ForSamples));
        assert_eq!(queue.admits_sample(&counts(2, 2, 0)), Ok(()));
        assert_eq!(queue.admits_sample(&counts(1, 2, 2)), Err(Wait::ForInserts));
    }

    #[test]
    fn weights_that_stand_still_stop_the_writers() {
        let limiter = Limiter { items_per_version: 8, versions_ahead: 1, ..Limiter::min_size(1) };
        let counts = |inserts, version| Counts { size: 1, inserts, samples: 0, version };
        assert_eq!(limiter.admits_insert(&counts(15, 0)), Ok(()));
        assert_eq!(limiter.admits_insert(&counts(16, 0)), Err(Wait::ForVersion));
        assert_eq!(limiter.admits_insert(&counts(16, 1)), Ok(()));
    }
}
