//! Loom's atomics, with every access seen by its search for interleavings. Only compiled for loom.
//!
//! Loom 0.7 remembers only the last access to an atomic. A thread that loads a word and then swaps it hides the load
//! that another thread did before, and the order in which that other one reads after the swap is never tried: a model
//! with such words passes after a handful of executions. So every access here first touches a second atomic. The touch
//! is relaxed and orders nothing; stale values are explored as before.

use super::Ordering;

macro_rules! watched {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub struct $name {
            word: loom::sync::atomic::$name,
            touched: loom::sync::atomic::AtomicU32,
        }

        impl $name {
            pub fn new(value: $value) -> Self {
                $name { word: loom::sync::atomic::$name::new(value), touched: Default::default() }
            }

            fn touch(&self) -> &loom::sync::atomic::$name {
                self.touched.fetch_add(1, Ordering::Relaxed);
                &self.word
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.touch().load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.touch().store(value, order)
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.touch().swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.touch().compare_exchange(current, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.touch().fetch_update(set, fetch, f)
            }
        }
    };
}

/// What numbers have besides.
macro_rules! watched_number {
    ($name:ident, $value:ty) => {
        watched!($name, $value);

        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.touch().fetch_add(value, order)
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.touch().fetch_sub(value, order)
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.touch().fetch_and(value, order)
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.touch().fetch_or(value, order)
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.touch().fetch_max(value, order)
            }
        }
    };
}

watched!(AtomicBool, bool);
watched_number!(AtomicU8, u8);
watched_number!(AtomicU32, u32);
watched_number!(AtomicU64, u64);
watched_number!(AtomicUsize, usize);
