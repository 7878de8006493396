//! The event loops of a server: one per thread. A connection stays on the loop that it was given to.
//!
//! The first loop accepts connections, and serves some of them. A new connection goes to the loop with the fewest connections.
//! Another loop is started when every loop has a connection and there may be more loops. So idle servers and those with one
//! client have one thread.

use super::connection;
use super::shared::{Admission, Shared};
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicUsize, Ordering};
use crate::sys::thread::{OwnedThread, lock};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};

/// How long the connections of a server that stops may take to say goodbye.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Sockets are copied by the kernel, and memory is the limit then.
const MOST_THREADS: usize = 8;

/// How many loops there are at most where the user does not say: clients, learner and kernel need the other cores.
pub fn default_threads() -> usize {
    threads_for(std::thread::available_parallelism().map_or(1, usize::from))
}

fn threads_for(cores: usize) -> usize {
    if cores <= 2 { 1 } else { (cores / 2).min(MOST_THREADS) }
}

/// Threads that were started, for the one who ends them.
pub type Threads = Arc<Mutex<Vec<OwnedThread>>>;

/// A connection that was admitted, and the address of its client.
pub struct Arrival {
    pub stream: std::net::TcpStream,
    pub peer: String,
    pub admission: Admission,
}

/// How many connections a loop has.
#[derive(Debug, Clone, Default)]
struct Load(Arc<AtomicUsize>);

impl Load {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }
}

/// One connection, as its loop counts it.
struct Counted(Load);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Another loop than the one that accepts.
struct OtherLoop {
    load: Load,
    arrivals: mpsc::UnboundedSender<(Arrival, Counted)>,
}

/// The loops, as the one that accepts sees them. Dropped, the others end when their connections have.
pub struct EventLoops<'a> {
    shared: &'a Arc<Shared>,
    tasks: &'a mut JoinSet<()>,
    most: usize,
    own: Load,
    others: Vec<OtherLoop>,
    threads: Threads,
}

impl<'a> EventLoops<'a> {
    pub fn new(shared: &'a Arc<Shared>, tasks: &'a mut JoinSet<()>, threads: Threads) -> EventLoops<'a> {
        let most = shared.spec.threads.unwrap_or_else(default_threads);
        EventLoops { shared, tasks, most, own: Load::default(), others: Vec::new(), threads }
    }

    /// Gives a connection to the loop with the fewest.
    pub fn serve(&mut self, arrival: Arrival) {
        let loads: Vec<usize> = self.loads().collect();
        let wants_another = wants_another(&loads, self.most);
        let chosen = if wants_another && self.start_another() { loads.len() } else { least_loaded(&loads) };
        match chosen.checked_sub(1) {
            None => serve(self.tasks, self.shared, arrival, self.own.count()),
            Some(index) => {
                let other = &self.others[index];
                drop(other.arrivals.send((arrival, other.load.count())));
            }
        }
    }

    /// The connections of each loop; first those of the loop that accepts.
    fn loads(&self) -> impl Iterator<Item = usize> {
        std::iter::once(&self.own).chain(self.others.iter().map(|other| &other.load)).map(Load::get)
    }

    /// Starts one more loop. False when there is no memory or descriptor for it: then those that run serve all.
    fn start_another(&mut self) -> bool {
        let (arrivals, mut arriving) = mpsc::unbounded_channel();
        let serve_all = async move |(), shared: &Arc<Shared>, tasks: &mut JoinSet<()>| {
            while let Some((arrival, counted)) = arriving.recv().await {
                serve(tasks, shared, arrival, counted);
            }
        };
        // Waits until it runs: a fraction of a millisecond, as often as there are loops.
        let Ok(thread) = start_loop(self.shared.clone(), self.others.len() + 1, || Ok(()), serve_all) else {
            return false;
        };
        lock(&self.threads).push(thread);
        self.others.push(OtherLoop { load: Load::default(), arrivals });
        true
    }
}

/// Whether every loop has a connection, and there may be more loops.
fn wants_another(loads: &[usize], most: usize) -> bool {
    loads.len() < most && !loads.contains(&0)
}

/// The loop with the fewest connections; the first of several.
fn least_loaded(loads: &[usize]) -> usize {
    loads.iter().enumerate().min_by_key(|(_, load)| **load).map_or(0, |(index, _)| index)
}

/// Starts the task of a connection.
fn serve(tasks: &mut JoinSet<()>, shared: &Arc<Shared>, arrival: Arrival, counted: Counted) {
    while tasks.try_join_next().is_some() {}
    let shared = shared.clone();
    tasks.spawn_local(async move {
        let _counted = counted;
        if let Ok(stream) = tokio::net::TcpStream::from_std(arrival.stream) {
            connection::serve(stream, arrival.peer, shared, arrival.admission).await;
        }
    });
}

/// Prepares and runs `work` in a loop of its own, then lets the tasks end. Returns when it is prepared.
pub fn start_loop<T: 'static>(
    shared: Arc<Shared>,
    number: usize,
    prepare: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    work: impl AsyncFnOnce(T, &Arc<Shared>, &mut JoinSet<()>) + Send + 'static,
) -> Result<OwnedThread> {
    let (ready, started) = std_mpsc::channel();
    let thread = OwnedThread::spawn(&format!("rollway-tcp-{number}"), move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let prepared = runtime.and_then(|runtime| {
            let context = runtime.enter();
            let prepared = prepare()?;
            drop(context);
            Ok((runtime, prepared))
        });
        let (runtime, prepared) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let _ = ready.send(Ok(()));
        let mut tasks = JoinSet::new();
        LocalSet::new().block_on(&runtime, async {
            work(prepared, &shared, &mut tasks).await;
            let finished = async { while tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(STOP_LIMIT, finished).await;
        });
    })?;
    let started = started.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread ended")));
    match started {
        Ok(()) => Ok(thread),
        Err(error) => {
            thread.join();
            Err(Error::io("cannot start an event loop", error))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_two_cores_has_one_loop_and_a_large_one_eight() {
        let threads = [1, 2, 3, 4, 8, 16, 64].map(threads_for);
        assert_eq!(threads, [1, 1, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn another_loop_is_started_when_all_have_a_connection_and_there_may_be_more() {
        let wanted = [(&[0][..], 8), (&[1], 8), (&[1], 1), (&[3, 0], 8), (&[3, 1], 8), (&[3, 1], 2)];
        assert_eq!(
            wanted.map(|(loads, most)| wants_another(loads, most)),
            [false, true, false, false, true, false]
        );
    }

    #[test]
    fn a_connection_goes_to_the_loop_with_the_fewest() {
        assert_eq!([&[2, 2, 2][..], &[2, 1, 1], &[2, 2, 1]].map(least_loaded), [0, 1, 2]);
    }
}
