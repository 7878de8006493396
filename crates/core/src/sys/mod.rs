//! What the rest of the core needs of the machine: atomics, waiting, time and copies. It knows nothing of segments.
//!
//! | module | what it is |
//! |---|---|
//! | [`sync`] | the only place that imports atomics; crash points; the [`sync::EventCount`] on which all threads wait; `sync::watched`: loom's atomics, for loom only |
//! | [`wait`] | how long to block, and when to check for dead peers |
//! | [`signals`] | how a sleep ends for a signal that came just before it |
//! | [`eventfd_waiter`] | a thread that blocks for an event loop and reports on an eventfd |
//! | [`thread`] | threads of the library, which handle no signals |
//! | [`fork`] | descriptors that a forked child closes at once; locks that it does not inherit; the order of locks |
//! | [`clock`] | the clock that all processes of a machine share |
//! | [`prefetch`](mod@prefetch) | hints to the processor |
//! | [`opaque_copy`] | copies around the cache, or with addresses that the compiler cannot follow |
//! | [`parallel`] | work that several threads share |

pub mod clock;
#[cfg(not(loom))]
pub mod eventfd_waiter;
pub mod fork;
pub mod opaque_copy;
pub mod parallel;
pub mod prefetch;
pub mod signals;
pub mod sync;
#[cfg(not(loom))]
pub mod thread;
pub mod wait;
