//! What the models under loom share: how they are explored, and one who dies at a named point of the shipped code.
//!
//! A death is a panic at a crash point, caught in its thread. Loom's threads share one OS thread, so plain locks cost no
//! branches.

use loom::thread;
use rollway_core::segment::Owner;
use rollway_core::segment::sessions::{Lookup, SessionTable};
use rollway_core::sys::sync::{AtomicU32, EventCount, Ordering, Point, fault};
use rollway_core::sys::wait::{Deadline, wait_for};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

/// Explores `model` with at most `preemptions` switches that no thread asked for.
pub fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = count.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model()
    });
    println!("{} executions", count.load(Ordering::Relaxed));
}

pub fn owner(seat: usize) -> Owner {
    Owner::new(seat, 1)
}

/// Starts a thread that works on a heap of words.
pub fn spawn<H: 'static, T: 'static>(
    heap: &Arc<H>,
    run: impl FnOnce(&H) -> T + 'static,
) -> thread::JoinHandle<T> {
    let heap = heap.clone();
    thread::spawn(move || run(&heap))
}

/// Waits as the shipped handles do, without a deadline. No time passes here: a lost wake-up is a deadlock, which loom reports.
pub fn wait_until<T>(
    event: &EventCount,
    announce: impl Fn() -> u32,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let found = wait_for(event, announce, Deadline::Never, || Ok(look()), || unreachable!("no time passes"));
    found.unwrap().expect("there is no deadline")
}

pub fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

/// At which point to die, and at which reach of it.
pub type Fate = Option<(Point, usize)>;

/// What one leaves for the judge: kept up as the points pass.
pub trait Testament: Default + 'static {
    fn pass(&mut self, at: Point);
}

/// One who may die.
pub struct Mortal<T> {
    dead: AtomicU32,
    life: Mutex<Life>,
    testament: Mutex<T>,
}

#[derive(Default)]
struct Life {
    reached: Vec<Point>,
    died: bool,
}

/// The unwinding that stands for a death.
struct Death;

/// The seat of the one who may die.
pub const VICTIM: usize = 7;

impl<T: Testament> Mortal<T> {
    pub fn new() -> Arc<Mortal<T>> {
        fault::on_point(|_| {}); // The last execution's hook goes.
        Arc::new(Mortal { dead: AtomicU32::new(0), life: Mutex::default(), testament: Mutex::default() })
    }

    /// Starts a thread that lives up to the chosen point.
    pub fn live<H: 'static>(
        self: &Arc<Self>,
        heap: &Arc<H>,
        fate: Fate,
        life: impl FnOnce(&H, &Mortal<T>) + 'static,
    ) -> thread::JoinHandle<()> {
        let this = self.clone();
        spawn(heap, move |heap| {
            let (witness, me) = (this.clone(), thread::current().id());
            fault::on_point(move |at| {
                if thread::current().id() == me && witness.dies_at(at, fate) {
                    resume_unwind(Box::new(Death));
                }
            });
            if let Err(cause) = catch_unwind(AssertUnwindSafe(|| life(heap, &this))) {
                if !cause.is::<Death>() {
                    resume_unwind(cause);
                }
                this.dead.store(1, Ordering::Release);
            }
        })
    }

    fn dies_at(&self, at: Point, fate: Fate) -> bool {
        self.testament().pass(at);
        let mut life = self.life.lock().unwrap();
        life.reached.push(at);
        let nth = life.reached.iter().filter(|before| **before == at).count();
        life.died |= fate == Some((at, nth));
        fate == Some((at, nth))
    }

    pub fn testament(&self) -> MutexGuard<'_, T> {
        self.testament.lock().unwrap()
    }

    pub fn died(&self) -> bool {
        self.life.lock().unwrap().died
    }

    /// How often it came to a point.
    pub fn reached(&self, point: Point) -> usize {
        self.life.lock().unwrap().reached.iter().filter(|at| **at == point).count()
    }

    /// Asks the kernel, so to speak.
    pub fn is_dead(&self, who: Owner) -> bool {
        who == owner(VICTIM) && self.dead.load(Ordering::Acquire) == 1
    }
}

/// The session of a remote client.
pub const SESSION: [u8; 16] = [5; 16];
/// The seat of the server that comes after the one that dies.
pub const NEXT_SERVER: usize = 8;

impl<T: Testament> Mortal<T> {
    /// The next server takes the session over, if this one is dead.
    pub fn give_session(&self, table: &impl SessionTable) -> Option<usize> {
        match table.take_session(SESSION, owner(NEXT_SERVER), 0, &|who| self.is_dead(who)).unwrap() {
            Lookup::Taken(entry) => Some(entry),
            Lookup::Held => None,
            Lookup::Unknown => panic!("the session is forgotten"),
        }
    }
}

/// Explores `model` once without a death, to see how often each of `points` is reached, and then with a death at every
/// one of these reaches. The model says how the victim ended.
pub fn kill_everywhere<T: Testament>(
    preemptions: usize,
    points: &'static [Point],
    model: impl Fn(Fate) -> Arc<Mortal<T>> + Clone + Send + Sync + 'static,
) {
    let reaches = Arc::new(Mutex::new(vec![0; points.len()]));
    let (most, live) = (reaches.clone(), model.clone());
    explore(preemptions, move || {
        let survivor = live(None);
        for (most, &point) in most.lock().unwrap().iter_mut().zip(points) {
            *most = survivor.reached(point).max(*most);
        }
    });
    for (&point, &most) in points.iter().zip(&*reaches.lock().unwrap()) {
        assert!(most > 0, "nobody reaches {point:?}");
        for nth in 1..=most {
            let deaths = Arc::new(Mutex::new(0));
            let (counter, die) = (deaths.clone(), model.clone());
            explore(preemptions, move || {
                *counter.lock().unwrap() += die(Some((point, nth))).died() as usize;
            });
            let deaths = *deaths.lock().unwrap();
            println!("{deaths} deaths at {point:?}, reach {nth} of {most}");
            assert!(deaths > 0);
        }
    }
}
