//! Work that several threads share. Each takes the next piece when it has done its last one, so a thread that starts late, or
//! loses its core, holds up no more than a piece.

use crate::sys::sync::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// More threads than this do not make memory faster.
const MOST_THREADS: usize = 4;

/// How many threads copy by default: as many as this process may use, at most four.
pub fn default_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new(); // Asking takes ten microseconds: the kernel's files are read for it.
    *THREADS
        .get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS)))
}

/// Calls `work` once for every item, by the calling thread and `threads - 1` others. They are gone when this returns.
pub fn for_each_parallel<T: Sync>(items: &[T], threads: usize, work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let take_items = || {
        // Relaxed: no other thread gets the number. The scope's end orders the rest.
        while let Some(piece) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(piece);
        }
    };
    if threads <= 1 {
        return take_items();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be started, the others do its share.
            let _ =
                std::thread::Builder::new().name("rollway-copy".to_owned()).spawn_scoped(scope, take_items);
        }
        take_items();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_whatever_the_number_of_threads() {
        for threads in [0, 1, 3, 8] {
            let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            for_each_parallel(&counts, threads, |count| _ = count.fetch_add(1, Ordering::Relaxed));
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
