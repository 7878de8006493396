//! Processes that are killed, one after the other, each at a visit of a point that it is told.

use crate::fixture::{Process, eventually, told};
use rollway_core::sys::sync::{Point, fault};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// In the victim: dies when any of its threads comes to the point, so many times.
pub fn die_as_told() {
    fault::on_point_of_any_thread(|point| {
        static ORDERS: OnceLock<(String, usize)> = OnceLock::new();
        static VISITED: AtomicUsize = AtomicUsize::new(0);
        let (at, visit) = ORDERS.get_or_init(|| (told("POINT"), told("VISIT").parse().unwrap()));
        if format!("{point:?}") == *at && VISITED.fetch_add(1, Ordering::Relaxed) + 1 == *visit {
            // SAFETY: has no memory to break.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    });
}

/// Starts a victim for each visit of each point, and waits until it has died there.
pub fn kill_at_each(
    victim: &str,
    variables: &[(&str, &str)],
    points: &[Point],
    visits: impl Fn(Point) -> &'static [usize],
) {
    for &point in points {
        for visit in visits(point) {
            let orders = [("POINT", format!("{point:?}")), ("VISIT", visit.to_string())];
            let orders = orders.each_ref().map(|(key, value)| (*key, value.as_str()));
            let mut victim = Process::start(victim, &[variables, &orders].concat());
            assert!(eventually(|| victim.has_ended()), "visit {visit} of {point:?} was never reached");
            assert!(victim.was_killed(), "it failed before visit {visit} of {point:?}");
        }
    }
}
