//! Every interleaving of a caller and two workers over the shipped hand-over, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom vector_env::`
//!
//! The words lie on loom's heap, actions and results in loom's cells: a read that does not happen after its write is an
//! error, and a wake-up that is lost is a deadlock; loom reports both.

use crate::mortal::explore;
use loom::cell::UnsafeCell;
use loom::thread;
use rollway_core::sys::sync::AtomicU64;
use rollway_core::vector_env::layout::{Control, WorkerLine};
use rollway_core::vector_env::protocol::Protocol;
use std::sync::Arc;
use std::time::Duration;

const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// A vector environment on loom's heap: one action and one result for each environment.
struct Heap {
    control: Box<Control>,
    lines: Vec<WorkerLine>,
    asked: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    actions: Vec<UnsafeCell<u64>>,
    results: Vec<UnsafeCell<u64>>,
}

// SAFETY: whether the cells are shared properly is what loom checks.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    fn new(workers: usize, envs: usize) -> Arc<Heap> {
        Arc::new(Heap {
            control: Box::default(),
            lines: (0..workers).map(|_| WorkerLine::default()).collect(),
            asked: (0..envs).map(|_| AtomicU64::new(0)).collect(),
            answered: (0..envs).map(|_| AtomicU64::new(0)).collect(),
            actions: (0..envs).map(|_| UnsafeCell::new(0)).collect(),
            results: (0..envs).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn words(&self) -> Protocol<'_> {
        Protocol { control: &self.control, lines: &self.lines, asked: &self.asked, answered: &self.answered }
    }

    /// A worker's life: sleeps, does what is asked, until it is closed.
    fn work(&self, worker: usize) {
        let words = self.words();
        loop {
            let ticket = self.lines[worker].work.announce();
            let tasks: Vec<_> = words.tasks(worker).collect();
            for &task in &tasks {
                // SAFETY: asked, not answered: the rows are ours (V1).
                let action = unsafe { self.actions[task.env].with(|cell| *cell) };
                // SAFETY: as above.
                unsafe { self.results[task.env].with_mut(|cell| *cell = action * 10) };
                words.answer(task, 0);
                words.wake_caller();
            }
            if !tasks.is_empty() {
                continue;
            }
            if words.is_closed() {
                return;
            }
            self.lines[worker].work.wait(ticket, FOR_EVER);
        }
    }

    /// The caller's ask: writes the action first.
    fn ask(&self, env: usize, action: u64) -> u32 {
        // SAFETY: the environment is idle: its rows are ours (V1).
        unsafe { self.actions[env].with_mut(|cell| *cell = action) };
        self.words().ask(env, 1, 0)
    }

    /// Sleeps until at most `limit` of these requests are missing; gives back those that are answered, with their results.
    fn wait(&self, requests: &[(usize, u32)], limit: usize) -> Vec<(usize, u64)> {
        let words = self.words();
        loop {
            let ticket = words.announce(limit);
            let done: Vec<usize> = requests
                .iter()
                .filter(|&&(env, number)| words.answer_of(env, number).is_some())
                .map(|&(env, _)| env)
                .collect();
            if done.len() + limit >= requests.len() {
                // SAFETY: answered: the rows are ours again (V1).
                return done
                    .into_iter()
                    .map(|env| (env, unsafe { self.results[env].with(|cell| *cell) }))
                    .collect();
            }
            self.control.answered.wait(ticket, FOR_EVER);
        }
    }
}

fn with_workers(heap: &Arc<Heap>, workers: usize, caller: impl FnOnce()) {
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let heap = heap.clone();
            thread::spawn(move || heap.work(worker))
        })
        .collect();
    caller();
    heap.words().close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn two_steps_of_one_worker_are_handed_over_whole() {
    explore(2, || {
        let heap = Heap::new(1, 2);
        with_workers(&heap, 1, || {
            for step in 1..=2 {
                let requests = [(0, heap.ask(0, step)), (1, heap.ask(1, step + 5))];
                heap.words().wake_workers(0..1);
                assert_eq!(heap.wait(&requests, 0), [(0, step * 10), (1, (step + 5) * 10)]);
            }
        });
    });
}

#[test]
fn of_two_workers_the_last_to_answer_wakes_the_caller() {
    explore(2, || {
        let heap = Heap::new(2, 2);
        with_workers(&heap, 2, || {
            let requests = [(0, heap.ask(0, 3)), (1, heap.ask(1, 4))];
            heap.words().wake_workers(0..2);
            assert_eq!(heap.wait(&requests, 0), [(0, 30), (1, 40)]);
        });
    });
}

#[test]
fn a_worker_that_watches_awake_finds_all_that_was_asked() {
    explore(3, || {
        let heap = Heap::new(1, 2);
        let watcher = {
            let heap = heap.clone();
            thread::spawn(move || {
                let (words, event) = (heap.words(), &heap.lines[0].work);
                let moved = event.count();
                if words.tasks(0).next().is_none() {
                    while event.count() == moved {
                        thread::yield_now();
                    }
                    assert_eq!(words.tasks(0).count(), 2);
                }
            })
        };
        heap.ask(0, 1);
        heap.ask(1, 2);
        heap.words().wake_workers(0..1);
        watcher.join().unwrap();
    });
}

#[test]
fn half_of_the_answers_are_enough_when_the_caller_says_so() {
    explore(1, || {
        let heap = Heap::new(2, 2);
        with_workers(&heap, 2, || {
            let requests = [(0, heap.ask(0, 3)), (1, heap.ask(1, 4))];
            heap.words().wake_workers(0..2);
            let first = heap.wait(&requests, 1);
            assert!(!first.is_empty());
            assert_eq!(heap.wait(&requests, 0).len(), 2);
        });
    });
}

#[test]
fn a_message_and_the_end_wake_a_sleeping_worker() {
    explore(3, || {
        let heap = Heap::new(1, 1);
        let reader = {
            let heap = heap.clone();
            thread::spawn(move || {
                let words = heap.words();
                loop {
                    let ticket = heap.lines[0].work.announce();
                    if words.messages_sent(0) == 1 && words.is_closed() {
                        return;
                    }
                    heap.lines[0].work.wait(ticket, FOR_EVER);
                }
            })
        };
        heap.words().post_message(0);
        heap.words().close();
        reader.join().unwrap();
    });
}
