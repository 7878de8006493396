//! Loom's atomics, with every access seen by its search for interleavings. Only compiled for loom.
//!
//! Loom 0.7 remembers only the last access to an atomic. A thread that loads a word and then swaps it hides the load
//! that another thread did before, and the order in which that other one reads after the swap is never tried: a model
//! with such words passes after a handful of executions. So every access here first touches a second atomic. The touch
//! is relaxed and orders nothing; stale values are explored as before.

use super::Ordering;

/// Methods that touch the word first.
macro_rules! touching {
    ($($method:ident($($argument:ident: $kind:ty),+) $(-> $result:ty)?;)+) => {
        $(
            pub fn $method(&self, $($argument: $kind),+) $(-> $result)? {
                self.touch().$method($($argument),+)
            }
        )+
    };
}

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

            touching! {
                load(order: Ordering) -> $value;
                store(value: $value, order: Ordering);
                swap(value: $value, order: Ordering) -> $value;
                compare_exchange(current: $value, new: $value, success: Ordering, failure: Ordering)
                    -> Result<$value, $value>;
                fetch_update(set: Ordering, fetch: Ordering, f: impl FnMut($value) -> Option<$value>)
                    -> Result<$value, $value>;
            }
        }
    };
}

/// What numbers have besides.
macro_rules! watched_number {
    ($name:ident, $value:ty) => {
        watched!($name, $value);

        impl $name {
            touching! {
                fetch_add(value: $value, order: Ordering) -> $value;
                fetch_sub(value: $value, order: Ordering) -> $value;
                fetch_and(value: $value, order: Ordering) -> $value;
                fetch_or(value: $value, order: Ordering) -> $value;
                fetch_max(value: $value, order: Ordering) -> $value;
            }
        }
    };
}

watched!(AtomicBool, bool);
watched_number!(AtomicU8, u8);
watched_number!(AtomicU32, u32);
watched_number!(AtomicU64, u64);
watched_number!(AtomicUsize, usize);
