//! What the tests of named segments share: names that must not be left behind, samples that can be checked, processes
//! of their own, and waiting for a condition with a deadline.
#![allow(dead_code)] // No test uses all of it.

#[cfg(feature = "fault")]
pub mod matrix;

use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::{Batch, Consumer, Deadline, IfExists, OnFull, Producer, RingSpec};
use rollway_core::segment;
use rollway_core::{Error, Result};
use std::io::{BufRead, BufReader, Lines};
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine; whoever waits this long waits for ever.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A deadline from now.
pub fn soon() -> Deadline {
    Deadline::after(Some(DEADLINE))
}

/// A wait that is meant to end without success.
pub fn briefly() -> Deadline {
    Deadline::after(Some(Duration::from_millis(30)))
}

/// Waits until `done` says so; false when it never does.
pub fn eventually(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Runs `call` in a thread of its own, and fails the test when it has not ended by the deadline. A thread that spins for ever
/// stays behind until the test process ends.
pub fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    ended.recv_timeout(DEADLINE).expect("the call goes on for ever, or panicked")
}

/// A name that nobody else uses, and that must be free again at the end of the test.
#[derive(Debug)]
pub struct Name(String);

impl Name {
    pub fn unique() -> Name {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Name(format!("test-{}-{number}", std::process::id()))
    }

    pub fn path(&self) -> PathBuf {
        segment::directory().join(format!("{}{}", segment::PREFIX, self.0))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let left = std::fs::remove_file(self.path()).is_ok();
        if left && !std::thread::panicking() {
            panic!("the test left {} behind", self.path().display());
        }
    }
}

pub const SCHEMA: &[u8] = br#"[["counter","<u8",[]],["check","|u1",[40]]]"#;
/// Two leaves: a counter, and 40 bytes that follow from it.
pub const LEAVES: &[usize] = &[8, 40];

pub fn spec(name: Option<&str>, batch_size: usize, num_buffers: usize) -> RingSpec<'_> {
    RingSpec {
        name,
        auto_named: false,
        schema: SCHEMA,
        leaf_bytes: LEAVES,
        batch_size,
        num_buffers,
        max_peers: 16,
        on_full: OnFull::Block,
        huge_pages: Some(false),
    }
}

/// The schema of weights whose leaves have these sizes.
pub fn weight_schema(leaf_bytes: &[usize]) -> &'static [u8] {
    let leaf = |(leaf, bytes): (usize, &usize)| format!(r#"["{leaf:06}","uint8",[{bytes}]]"#);
    let leaves: Vec<String> = leaf_bytes.iter().enumerate().map(leaf).collect();
    let numbers: Vec<String> = (0..leaves.len()).map(|leaf| leaf.to_string()).collect();
    let text = format!(r#"{{"leaves":[{}],"tree":{{"list":[{}]}}}}"#, leaves.join(","), numbers.join(","));
    text.into_bytes().leak()
}

/// The schema of rows whose fields have these sizes.
pub fn row_schema(field_bytes: impl Iterator<Item = usize>) -> &'static [u8] {
    let field = |(field, bytes)| format!(r#"["{field}","|u1",[{bytes}]]"#);
    format!("[{}]", field_bytes.enumerate().map(field).collect::<Vec<_>>().join(",")).into_bytes().leak()
}

pub fn open(spec: &RingSpec<'_>) -> Consumer {
    Consumer::open(spec, IfExists::Resume, None).unwrap()
}

/// A ring without a name.
pub fn private(batch_size: usize, num_buffers: usize) -> Consumer {
    open(&spec(None, batch_size, num_buffers))
}

pub const ANYONE: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };

pub fn producer(consumer: &Consumer) -> Producer {
    Producer::attach_to(consumer.ring().clone(), ANYONE).unwrap()
}

pub fn attach(name: &str) -> Result<Producer> {
    Producer::attach(name, SCHEMA, LEAVES, ANYONE)
}

/// The bytes of the second leaf.
pub fn check_of(value: u64) -> [u8; 40] {
    let mut state = value;
    std::array::from_fn(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    })
}

/// Writes sample `value` to where the two leaves lie, with `halfway` in the middle.
pub fn write_sample(leaves: [*mut u8; 2], value: u64, halfway: impl FnOnce()) {
    let check = check_of(value);
    let (one, two) = check.split_at(20);
    // SAFETY: the caller has claimed the row, and the leaves have the sizes of `LEAVES`.
    unsafe {
        leaves[0].copy_from_nonoverlapping(value.to_ne_bytes().as_ptr(), 8);
        leaves[1].copy_from_nonoverlapping(one.as_ptr(), 20);
        halfway();
        leaves[1].add(20).copy_from_nonoverlapping(two.as_ptr(), 20);
    }
}

/// Sends `value`; false when it was dropped, as the policy says.
pub fn try_send(producer: &Producer, value: u64, deadline: Deadline) -> Result<bool> {
    let Some(slot) = Producer::reserve(producer, 1, deadline)? else { return Ok(false) };
    write_sample([slot.leaf(0), slot.leaf(1)], value, || {});
    slot.commit(0);
    Ok(true)
}

pub fn send(producer: &Producer, value: u64) {
    assert!(try_send(producer, value, soon()).unwrap(), "sample {value} was dropped");
}

/// The samples of a batch, in the order of their rows, each of them whole.
pub fn values<C: Deref<Target = Consumer>>(batch: &Batch<C>) -> Vec<u64> {
    let rows = batch.runs().into_iter().flat_map(|(first, len)| first..first + len);
    let values: Vec<u64> = rows
        .map(|row| {
            // SAFETY: the batch is ours, the row is Ready, and the leaves have the sizes of `LEAVES`.
            let (value, check) = unsafe {
                (batch.leaf(0, row).cast::<u64>().read(), batch.leaf(1, row).cast::<[u8; 40]>().read())
            };
            assert_eq!(check, check_of(value), "sample {value} is not whole");
            value
        })
        .collect();
    assert_eq!(values.len(), batch.len());
    values
}

/// Takes, reads and releases the next batch.
pub fn receive(consumer: &Consumer) -> Vec<u64> {
    values(&Consumer::take(consumer, soon(), None).unwrap().expect("there is a batch when the wait succeeds"))
}

/// Takes, reads and releases what is complete now.
pub fn drain(consumer: &Consumer) -> Vec<u64> {
    let mut all = Vec::new();
    while let Ok(Some(batch)) = Consumer::take(consumer, Deadline::Now, None) {
        all.extend(values(&batch));
    }
    all
}

pub fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

/// Runs the rest of the calling test in a process of its own: `if !alone("module::the_test") { return }`.
pub fn alone(test: &str) -> bool {
    alone_with(test, &[])
}

/// As [`alone`], with variables in the environment.
pub fn alone_with(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var("ROLLWAY_TEST_ALONE").is_ok_and(|chosen| chosen == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env("ROLLWAY_TEST_ALONE", test);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "in a process of its own:\n{text}");
    assert!(text.contains("running 1 test"), "this binary has no test {test}:\n{text}");
    false
}

/// A child process: one of the ignored tests of this binary, which says on its output how far it is.
pub struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

const SAYS: &str = "says: ";

/// What a child process tells the test that started it. The harness may have begun the line with the test's name.
pub fn say(text: impl std::fmt::Display) {
    println!("{SAYS}{text}");
}

impl Process {
    pub fn start(test: &str, variables: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// The next thing it says; `None` when it has ended.
    pub fn hear(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some((_, text)) = line.split_once(SAYS) {
                return Some(text.to_owned());
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// As `ps` shows it. 'Z' says that its first thread has ended; the last one lets go of its leases.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory to break; the child is ours, and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits for its end; true when it ended well.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; true when a SIGKILL ended it.
    pub fn was_killed(&mut self) -> bool {
        self.child.wait().unwrap().signal() == Some(libc::SIGKILL)
    }

    /// Kills it, and returns when it is dead.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A variable that a child process was started with.
pub fn told(key: &str) -> String {
    std::env::var(key).unwrap_or_else(|_| panic!("a child process of this test needs {key}"))
}

/// Keeps a child process where it is until somebody ends it: its input never ends before.
pub fn stay() -> ! {
    let _ = std::io::stdin().lines().count();
    std::process::exit(0);
}

pub fn is_closed<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Closed))
}

/// A consumer that threads can share.
pub fn shared(consumer: Consumer) -> Arc<Consumer> {
    Arc::new(consumer)
}
