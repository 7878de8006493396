//! Segments as processes meet them: named files that are made, found, refused, shared, left, and collected.
//!
//! What takes another process (a death, a fork, another directory) is played by this same test binary, started again
//! with a role in its environment; see [`plays_the_role_given_in_its_environment`]. Every test has names of its own, and
//! fails when it leaves a file behind.
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::{Consumer, Deadline, IfExists, OnFull, Producer, RingSpec};
use rollway_core::segment::header::{Header, LAYOUT_VERSION, PAGE, SeatRecord};
use rollway_core::segment::lease::StaleOwner;
use rollway_core::segment::{
    DelegatedLease, Owner, PREFIX, Role, Seat, Segment, Spec, arrival, catalog, directory,
};
use rollway_core::sys::sync::Ordering;
#[cfg(feature = "fault")]
use rollway_core::sys::sync::{Point, fault};
use rollway_core::{Error, Result};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes; a wait that reaches it has failed.
const LONG: Duration = Duration::from_secs(30);

// ── names and rings for the tests ──────────────────────────────────────────────────────────────────────────────────

/// A name that no other test has. The test that drops it must have left no file of that name.
struct Name(String);

impl Name {
    fn new(what: &str) -> Name {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Name(format!("test-segment-{what}-{}-{count}", std::process::id()))
    }

    fn path(&self) -> PathBuf {
        directory().join(format!("{PREFIX}{}", self.0))
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path()).unwrap()
    }
}

impl std::ops::Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let left = self.path().symlink_metadata().is_ok();
        if left {
            let _ = fs::remove_file(self.path());
        }
        assert!(thread::panicking() || !left, "{} was left behind", self.path().display());
    }
}

const SCHEMA: &[u8] = br#"[["obs","<f4",[2]]]"#;
const LEAVES: [usize; 1] = [8];
const SEATS: usize = 4;

fn ring_spec(name: &str) -> RingSpec<'_> {
    RingSpec {
        name: Some(name),
        auto_named: false,
        schema: SCHEMA,
        leaf_bytes: &LEAVES,
        batch_size: 2,
        num_buffers: 2,
        max_peers: SEATS,
        on_full: OnFull::Block,
        huge_pages: Some(false),
    }
}

fn open(name: &str, if_exists: IfExists) -> Result<Consumer> {
    Consumer::open(&ring_spec(name), if_exists, None)
}

fn create(name: &str) -> Consumer {
    open(name, IfExists::Fail).unwrap()
}

fn attach(name: &str) -> Result<Producer> {
    let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
    Producer::attach(name, SCHEMA, &LEAVES, spec)
}

/// A ring whose learner was killed.
fn leave_stale(name: &str) {
    let mut learner = Actor::start("learner", name);
    assert_eq!(learner.hear(), "there");
    learner.kill();
}

fn send(producer: &Producer, value: u64) {
    let slot = Producer::reserve(producer, 1, Deadline::after(Some(LONG))).unwrap().unwrap();
    // SAFETY: the slot is ours, and its one leaf has eight bytes.
    unsafe { slot.leaf(0).cast::<u64>().write_unaligned(value) };
    slot.commit(0);
}

/// The values of the next batch, each with its producer and its number.
fn receive(consumer: &Consumer) -> Vec<(u64, u32, u64)> {
    let batch = Consumer::take(consumer, Deadline::after(Some(LONG)), None).unwrap().unwrap();
    let rows = batch.runs().into_iter().flat_map(|(first, len)| first..first + len);
    rows.map(|row| {
        // SAFETY: the row is Ready, and its one leaf has eight bytes.
        let value = unsafe { batch.leaf(0, row).cast::<u64>().read_unaligned() };
        (value, batch.stamp(row).producer_id, batch.stamp(row).sequence)
    })
    .collect()
}

/// Looks again until it is so. The kernel tells of a death as soon as the process is gone, which takes a moment.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        thread::yield_now();
    }
}

macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            Err(other) => panic!("expected {}, got {other:?}", stringify!($pattern)),
            Ok(_) => panic!("expected {}, and it worked", stringify!($pattern)),
        }
    };
}

// ── actors: other processes ────────────────────────────────────────────────────────────────────────────────────────

const ROLE: &str = "ROLLWAY_TEST_ROLE";
const NAME: &str = "ROLLWAY_TEST_NAME";
/// In front of what an actor says, among the lines of the test harness.
const MARK: &str = "@@ ";

/// This binary, started again in another role. Killed when dropped.
struct Actor {
    process: Child,
    orders: Option<ChildStdin>,
    words: Receiver<String>,
}

impl Actor {
    fn start(role: &str, name: &str) -> Actor {
        Actor::spawn(&mut Actor::command(role, name)).unwrap()
    }

    fn command(role: &str, name: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "segment::plays_the_role_given_in_its_environment",
                "--nocapture",
                "--test-threads=1",
            ])
            .envs([(ROLE, role), (NAME, name)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn spawn(command: &mut Command) -> std::io::Result<Actor> {
        let mut process = command.spawn()?;
        let (orders, output) = (process.stdin.take(), process.stdout.take().unwrap());
        let (sender, words) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
                if let Some((_, word)) = line.split_once(MARK) {
                    let _ = sender.send(word.to_owned());
                }
            }
        });
        Ok(Actor { process, orders, words })
    }

    /// The next thing it says.
    fn hear(&self) -> String {
        self.words.recv_timeout(LONG).expect("the actor says something")
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL, and waits for the end.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        assert_eq!(self.process.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    /// Waits for an end in peace.
    fn finish(mut self) {
        drop(self.orders.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Said by an actor. Written at once, and safe in a forked child.
fn say(word: &str) {
    let line = format!("{MARK}{word}\n");
    // SAFETY: the buffer is as long as we say.
    let written = unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
    assert_eq!(written, line.len() as isize);
}

/// The next order; `None` when the test is over. Byte by byte: a forked child reads from the same pipe.
fn hear_order() -> Option<String> {
    let mut order = Vec::new();
    let mut byte = 0u8;
    // SAFETY: room for the one byte that we ask for.
    while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } == 1 {
        if byte == b'\n' {
            return Some(String::from_utf8(order).unwrap());
        }
        order.push(byte);
    }
    None
}

#[test]
fn plays_the_role_given_in_its_environment() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let name = std::env::var(NAME).unwrap();
    match role.as_str() {
        "learner" => {
            let _consumer = create(&name);
            say("there");
            hear_order();
        }
        "auto-named learner" => {
            let spec = RingSpec { auto_named: true, ..ring_spec(&name) };
            let _consumer = Consumer::open(&spec, IfExists::Fail, None).unwrap();
            say("there");
            hear_order();
        }
        "claimer" => {
            let producer = attach(&name).unwrap();
            let slot = Producer::reserve(&producer, 1, Deadline::Now).unwrap().unwrap();
            // SAFETY: the slot is ours; we write half of its leaf.
            unsafe { slot.leaf(0).cast::<u32>().write_unaligned(u32::MAX) };
            say("claimed");
            hear_order();
        }
        "forker" => play_forker(&name),
        #[cfg(feature = "fault")]
        "forker with two threads" => play_forker_with_two_threads(&name),
        "creator among many" => play_creator_among_many(&name),
        "collector of its own directory" => play_collector(&name),
        "creator in a tiny directory" => play_creator_in_a_tiny_directory(&name),
        other => panic!("no such role: {other}"),
    }
}

/// Forks with a producer that has sent. The child takes orders; the parent waits for its end.
fn play_forker(name: &str) {
    let producer = attach(name).unwrap();
    send(&producer, 1);
    // SAFETY: the child touches nothing that another thread could have held: a pipe and the ring.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            say(&format!("child of {}", producer.producer_id()));
            if hear_order().as_deref() == Some("send") {
                send(&producer, 2);
                say(&format!("sent as {} of {}", producer.producer_id(), producer.sent()));
                hear_order();
            }
            drop(producer);
            // SAFETY: ends the child without the harness's farewell.
            unsafe { libc::_exit(0) };
        }
        child => {
            // SAFETY: waits for our own child; no status wanted.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}

/// Forks with a consumer. In the child, one thread takes a new seat while another one asks who lives, and neither may wait for
/// the other: the first thread does not go on before the second has its answer.
#[cfg(feature = "fault")]
fn play_forker_with_two_threads(name: &str) {
    let consumer = Arc::new(open(name, IfExists::Resume).unwrap());
    // SAFETY: the child touches nothing that another thread could have held: a pipe and the ring.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: sets a timer of this process. Threads that wait for each other would stay for ever.
            unsafe { libc::alarm(LONG.as_secs() as u32) };
            let (ask, questions) = channel::<()>();
            let (answer, answers) = channel();
            let asker = consumer.clone();
            thread::spawn(move || questions.recv().map(|()| answer.send(asker.producers().alive)));
            fault::on_point(move |point| {
                if point == Point::SeatRejoining {
                    ask.send(()).unwrap();
                    let alive = answers.recv_timeout(LONG / 3);
                    say(&alive.map_or("no answer".to_owned(), |alive| format!("{alive} alive")));
                }
            });
            let taken = Consumer::take(&*consumer, Deadline::Now, None);
            say(if taken.is_ok() { "has a seat" } else { "has no seat" });
            hear_order();
            // SAFETY: ends the child without the harness's farewell.
            unsafe { libc::_exit(0) };
        }
        child => {
            // SAFETY: waits for our own child; no status wanted.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}

// ── creating and attaching ─────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_new_segment_is_private_whole_and_gone_after_close() {
    let name = Name::new("new");
    let consumer = create(&name);
    let metadata = fs::metadata(name.path()).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    let header = consumer.ring().segment().header();
    assert_eq!(metadata.len(), header.total_bytes);
    assert_eq!(header.creator_pid, std::process::id());
    assert_eq!(consumer.ring().segment().schema(), SCHEMA);
    assert!(!consumer.resumed());
    consumer.close().unwrap();
    assert!(!name.path().exists());
    assert!(consumer.ring().segment().is_unlinked().unwrap());
    consumer.close().unwrap(); // Once more does no harm.
}

#[test]
fn a_consumer_that_is_dropped_has_left() {
    let name = Name::new("dropped");
    let consumer = create(&name);
    let producer = attach(&name).unwrap();
    drop(consumer);
    assert!(!name.path().exists());
    assert_refused!(producer.claim(1, Deadline::Now), Error::Closed);
}

#[test]
fn every_page_of_a_new_segment_exists() {
    use std::os::unix::fs::MetadataExt;
    let name = Name::new("pages");
    let spec = RingSpec { leaf_bytes: &[1 << 16], batch_size: 16, ..ring_spec(&name) };
    let consumer = Consumer::open(&spec, IfExists::Fail, None).unwrap();
    let metadata = fs::metadata(name.path()).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.len(), "{metadata:?}");
    consumer.close().unwrap();
}

#[test]
fn a_producer_finds_the_segment_by_its_name() {
    let name = Name::new("attach");
    let consumer = create(&name);
    let producer = attach(&name).unwrap();
    (1..=2).for_each(|value| send(&producer, value));
    assert_eq!(receive(&consumer).iter().map(|(value, ..)| *value).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(consumer.producers().alive, 1);
    consumer.close().unwrap();
    assert_refused!(producer.claim(1, Deadline::Now), Error::Closed);
    assert_refused!(attach(&name), Error::NotFound { .. });
}

#[test]
fn a_creator_that_gives_up_before_publishing_leaves_nothing() {
    let name = Name::new("unpublished");
    let segment = Segment::create(&segment_spec(&name)).unwrap();
    assert!(!name.path().exists());
    assert!(!segment.is_unlinked().unwrap(), "it never had a name to lose");
    drop(segment);
    assert!(!name.path().exists());
}

#[test]
fn a_segment_without_a_name_is_seen_by_nobody() {
    let consumer = Consumer::open(&RingSpec { name: None, ..ring_spec("") }, IfExists::Fail, None).unwrap();
    assert!(consumer.ring().segment().is_live().unwrap());
    assert!(!consumer.ring().segment().is_unlinked().unwrap());
    consumer.close().unwrap();
    assert!(consumer.ring().is_closed());
}

fn segment_spec(name: &str) -> Spec<'_> {
    Spec {
        name: Some(name),
        kind: 77,
        schema: b"opaque",
        geometry: [0; 16],
        body_bytes: 100,
        reserved_bytes: 100,
        seats: SEATS,
        huge_pages: Some(false),
        auto_named: false,
    }
}

#[test]
fn bad_names_are_refused_everywhere() {
    let long = "n".repeat(201);
    for bad in ["", ".hidden", "..", "a/b", "/etc/passwd", "a b", "ä", "a\0b", "a\n", &long] {
        assert_refused!(open(bad, IfExists::Resume), Error::BadName { .. });
        assert_refused!(open(bad, IfExists::Replace), Error::BadName { .. });
        assert_refused!(attach(bad), Error::BadName { .. });
        assert_refused!(Segment::open(bad, None), Error::BadName { .. });
        assert_refused!(catalog::collect(bad), Error::BadName { .. });
        assert_refused!(arrival::wait_for(bad, Deadline::Now), Error::BadName { .. });
    }
    let longest = Name(format!("{:-<200}", &*Name::new("long")));
    create(&longest).close().unwrap();
}

#[test]
fn sizes_out_of_range_are_refused() {
    let name = Name::new("range");
    let refused = |spec: RingSpec<'_>| {
        assert_refused!(Consumer::open(&spec, IfExists::Resume, None), Error::OutOfRange { .. });
    };
    refused(RingSpec { max_peers: 0, ..ring_spec(&name) });
    refused(RingSpec { max_peers: 1025, ..ring_spec(&name) });
    refused(RingSpec { batch_size: 0, ..ring_spec(&name) });
    refused(RingSpec { batch_size: usize::MAX, ..ring_spec(&name) });
    refused(RingSpec { num_buffers: 1, ..ring_spec(&name) });
    refused(RingSpec { num_buffers: usize::MAX, ..ring_spec(&name) });
    refused(RingSpec { leaf_bytes: &[], ..ring_spec(&name) });
    refused(RingSpec { leaf_bytes: &[usize::MAX], ..ring_spec(&name) });
    let spec = Spec { body_bytes: usize::MAX, ..segment_spec(&name) };
    assert_refused!(Segment::create(&spec), Error::OutOfRange { .. });
}

// ── files that are not what they should be ─────────────────────────────────────────────────────────────────────────

/// Every way to open a name.
fn open_in_every_way(name: &str) -> Vec<Result<()>> {
    vec![
        attach(name).map(drop),
        open(name, IfExists::Resume).map(drop),
        open(name, IfExists::Replace).map(drop),
        Segment::open(name, None).map(drop),
        arrival::wait_for(name, Deadline::Now),
        catalog::collect(name).map(drop),
    ]
}

#[test]
fn a_segment_that_others_may_read_is_refused() {
    let name = Name::new("mode");
    leave_stale(&name);
    for mode in [0o644, 0o640, 0o604, 0o666, 0o620] {
        fs::set_permissions(name.path(), Permissions::from_mode(mode)).unwrap();
        for result in open_in_every_way(&name) {
            assert_refused!(result, Error::NotOurs { mode: seen, .. } if seen == mode);
        }
        assert_refused!(open(&name, IfExists::Fail), Error::NotOurs { .. });
        let listed = catalog::list().unwrap().into_iter().find(|entry| entry.name == *name).unwrap();
        assert!(listed.problem.unwrap().contains("mode"));
    }
    fs::set_permissions(name.path(), Permissions::from_mode(0o600)).unwrap();
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn a_file_that_is_no_segment_is_refused_and_left_alone() {
    let name = Name::new("text");
    for contents in [&b""[..], b"hello", &[0; 4096], &[0xff; 3 * PAGE]] {
        fs::write(name.path(), contents).unwrap();
        fs::set_permissions(name.path(), Permissions::from_mode(0o600)).unwrap();
        for result in open_in_every_way(&name) {
            assert_refused!(result, Error::NotASegment { .. });
        }
        assert_eq!(fs::read(name.path()).unwrap(), contents);
        fs::remove_file(name.path()).unwrap();
    }
}

#[test]
fn a_link_or_a_directory_in_the_place_of_a_segment_is_refused() {
    let (name, victim) = (Name::new("link"), Name::new("victim"));
    leave_stale(&victim);
    std::os::unix::fs::symlink(victim.path(), name.path()).unwrap();
    for result in open_in_every_way(&name) {
        assert_refused!(result, Error::Io { .. });
    }
    fs::remove_file(name.path()).unwrap();
    assert!(catalog::collect(&victim).unwrap());
    fs::create_dir(name.path()).unwrap();
    for result in open_in_every_way(&name) {
        assert_refused!(result, Error::Io { .. });
    }
    fs::remove_dir(name.path()).unwrap();
}

#[test]
fn a_truncated_or_grown_segment_is_refused() {
    let name = Name::new("truncated");
    leave_stale(&name);
    let whole = fs::read(name.path()).unwrap();
    let total = whole.len();
    // Every time another file: one that shrinks while somebody looks into it would end him with a SIGBUS.
    let replace = |bytes: usize| {
        let mut contents = whole.clone();
        contents.resize(bytes, 0);
        let draft = directory().join(format!("{}.draft", &*name));
        fs::write(&draft, contents).unwrap();
        fs::set_permissions(&draft, Permissions::from_mode(0o600)).unwrap();
        fs::rename(draft, name.path()).unwrap();
    };
    for bytes in [0, 1, 8, 100, PAGE, total - PAGE, total - 1, total + 1, total + PAGE] {
        replace(bytes);
        for result in open_in_every_way(&name) {
            assert_refused!(result, Error::NotASegment { .. });
        }
    }
    replace(total);
    assert!(open(&name, IfExists::Resume).unwrap().resumed());
}

#[test]
fn another_magic_version_or_kind_is_refused() {
    let name = Name::new("magic");
    leave_stale(&name);
    let header = fs::read(name.path()).unwrap()[..size_of::<Header>()].to_vec();
    name.file().write_all_at(b"NOTOURS!", 0).unwrap();
    for result in open_in_every_way(&name) {
        assert_refused!(result, Error::NotASegment { .. });
    }
    name.file().write_all_at(&header, 0).unwrap();
    name.file().write_all_at(&(LAYOUT_VERSION + 1).to_ne_bytes(), 8).unwrap();
    for result in open_in_every_way(&name) {
        assert_refused!(result, Error::LayoutVersion { theirs, ours: LAYOUT_VERSION, .. } if theirs == LAYOUT_VERSION + 1);
    }
    name.file().write_all_at(&header, 0).unwrap();
    name.file().write_all_at(&99u32.to_ne_bytes(), 12).unwrap();
    assert_refused!(attach(&name), Error::Kind { .. });
    assert_refused!(open(&name, IfExists::Resume), Error::Kind { .. });
    let replacement = open(&name, IfExists::Replace).unwrap();
    assert!(!replacement.resumed(), "a stale segment of any kind can be collected");
    replacement.close().unwrap();
}

#[test]
fn no_number_in_the_header_makes_it_panic() {
    use std::mem::offset_of;
    let name = Name::new("header");
    leave_stale(&name);
    let keeper = attach(&name).unwrap(); // One number says that anybody may collect it as soon as it is stale.
    let file = name.file();
    let mut whole = vec![0; size_of::<Header>()];
    file.read_exact_at(&mut whole, 0).unwrap();
    // What may be anything, and what another geometry of the same size would have. All else must be refused.
    let geometry = offset_of!(Header, geometry);
    let harmless = [
        offset_of!(Header, creator_pid)..offset_of!(Header, seats),
        offset_of!(Header, created_unix_ns)..offset_of!(Header, schema_bytes),
        offset_of!(Header, auto_named)..geometry + 4,
        geometry + 4 * 8..whole.len(),
    ];
    for at in (0..whole.len()).step_by(4) {
        let was = u32::from_ne_bytes(whole[at..at + 4].try_into().unwrap());
        let near = [was.wrapping_add(1), was.wrapping_sub(1), was ^ 1 << 12, was ^ 1 << 31, !was];
        for value in [0, 1, u32::MAX, i32::MAX as u32].into_iter().chain(near).filter(|value| *value != was) {
            file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
            let _ = Segment::open(&name, None).map(|segment| (segment.schema(), segment.is_live()));
            let is_harmless = harmless.iter().any(|range| range.contains(&at));
            match attach(&name) {
                Ok(producer) => {
                    assert!(is_harmless, "{value:#x} at {at} was accepted");
                    producer.abort(producer.claim(1, Deadline::Now).unwrap().unwrap());
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            file.write_all_at(&whole, 0).unwrap();
        }
    }
    drop(attach(&name).unwrap());
    drop(keeper);
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn what_is_written_over_header_and_schema_later_is_not_seen() {
    let name = Name::new("later");
    let consumer = create(&name);
    let segment = Segment::open(&name, None).unwrap();
    let (header, schema) = (segment.header(), segment.schema());
    let honest = fs::read(name.path()).unwrap()[..PAGE].to_vec();
    name.file().write_all_at(&vec![0xff; PAGE], 0).unwrap();
    let text = PAGE + header.seats as usize * size_of::<SeatRecord>();
    name.file().write_all_at(&vec![0xff; schema.len()], text as u64).unwrap();
    for segment in [&segment, consumer.ring().segment()] {
        assert_eq!(
            (segment.header().geometry, segment.header().schema_bytes),
            (header.geometry, header.schema_bytes)
        );
        assert_eq!(segment.schema(), schema);
    }
    name.file().write_all_at(&honest, 0).unwrap();
    consumer.close().unwrap();
}

#[test]
fn another_schema_is_refused_and_shown() {
    let name = Name::new("schema");
    let consumer = create(&name);
    let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
    let other = Producer::attach(&name, br#"[["obs","<f8",[2]]]"#, &[16], spec);
    assert_refused!(other, Error::Schema { theirs, creator, .. } if theirs == SCHEMA && creator == std::process::id());
    let other = RingSpec { schema: b"", ..ring_spec(&name) };
    let refused = Consumer::open(&other, IfExists::Resume, None);
    assert_refused!(refused, Error::Schema { theirs, .. } if theirs == SCHEMA);
    // The same text with other sizes: somebody read it wrong.
    assert_refused!(Producer::attach(&name, SCHEMA, &[16], spec), Error::Corrupt { .. });
    consumer.close().unwrap();
}

#[test]
fn another_geometry_is_refused_while_somebody_lives_and_replaced_afterwards() {
    let name = Name::new("geometry");
    let consumer = create(&name);
    let larger = RingSpec { batch_size: 3, ..ring_spec(&name) };
    let more = RingSpec { num_buffers: 3, ..ring_spec(&name) };
    let refused = Consumer::open(&larger, IfExists::Resume, None);
    assert_refused!(refused, Error::Geometry { what: "batch_size", theirs: 2, ours: 3, .. });
    let refused = Consumer::open(&more, IfExists::Resume, None);
    assert_refused!(refused, Error::Geometry { what: "num_buffers", theirs: 2, ours: 3, .. });
    consumer.close().unwrap();
    drop(consumer);
    leave_stale(&name);
    let consumer = Consumer::open(&larger, IfExists::Resume, None).unwrap();
    assert!(!consumer.resumed());
    assert_eq!(consumer.ring().geometry().batch_size, 3);
    consumer.close().unwrap();
}

#[test]
fn a_stale_ring_of_another_shape_is_not_replaced_while_it_has_samples() {
    let name = Name::new("has-samples");
    let mut learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    let producer = attach(&name).unwrap();
    send(&producer, 1);
    learner.kill();
    drop(producer);
    let larger = RingSpec { batch_size: 3, ..ring_spec(&name) };
    let refused = Consumer::open(&larger, IfExists::Resume, None);
    assert_refused!(refused, Error::Geometry { what: "batch_size", theirs: 2, ours: 3, .. });
    let other = RingSpec { schema: br#"[["other","<f8",[1]]]"#, ..ring_spec(&name) };
    assert_refused!(Consumer::open(&other, IfExists::Resume, None), Error::Schema { theirs, .. } if theirs == SCHEMA);
    assert_eq!(open(&name, IfExists::Resume).unwrap().ring().census().ready_samples, 1);
    leave_stale(&name);
    let consumer = Consumer::open(&larger, IfExists::Replace, None).unwrap();
    assert!(!consumer.resumed());
    consumer.close().unwrap();
}

#[test]
fn an_abandoned_ring_is_as_after_the_death_of_its_learner() {
    let name = Name::new("abandoned");
    let consumer = Arc::new(create(&name));
    let producer = attach(&name).unwrap();
    (1..=4).for_each(|value| send(&producer, value));
    let held = Consumer::take(consumer.clone(), Deadline::Now, None).unwrap().unwrap();
    Consumer::abandon(consumer).unwrap();
    let learners = producer.consumers();
    assert_eq!((learners.alive, learners.died), (0, vec![std::process::id()]), "also while it holds a batch");
    let second = open(&name, IfExists::Resume).unwrap();
    assert!(second.resumed());
    let values = |consumer| receive(consumer).into_iter().map(|(value, ..)| value).collect::<Vec<_>>();
    assert_eq!(values(&second), [3, 4]);
    drop(held);
    assert_eq!(values(&second), [1, 2], "what it held comes again");
    second.close().unwrap();
    assert!(!name.path().exists());
}

#[test]
fn an_abandoned_ring_without_samples_goes_with_its_last_participant() {
    let name = Name::new("abandoned-empty");
    let consumer = Arc::new(create(&name));
    let producer = attach(&name).unwrap();
    Consumer::abandon(consumer).unwrap();
    assert!(name.path().exists(), "a worker is there, and may send");
    let second = open(&name, IfExists::Resume).unwrap();
    drop(producer);
    Consumer::abandon(Arc::new(second)).unwrap();
    assert!(!name.path().exists());
}

// ── a name that is taken ───────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn the_name_of_a_live_segment_is_in_use() {
    let name = Name::new("in-use");
    let consumer = create(&name);
    let _producer = attach(&name).unwrap();
    let me = std::process::id();
    assert_refused!(open(&name, IfExists::Replace), Error::InUse { creator, alive: 2, .. } if creator == me);
    assert_refused!(open(&name, IfExists::Fail), Error::Exists { .. });
    assert!(!catalog::collect(&name).unwrap());
    let listed = catalog::list().unwrap().into_iter().find(|entry| entry.name == *name).unwrap();
    assert_eq!((listed.alive, listed.pids.as_slice(), listed.problem), (2, &[me, me][..], None));
    let second = open(&name, IfExists::Resume).unwrap();
    assert!(second.resumed());
    second.close().unwrap();
    assert!(name.path().exists(), "the last consumer takes the name away, not the first");
    consumer.close().unwrap();
}

#[test]
fn a_stale_segment_is_recognised_resumed_replaced_and_collected() {
    let name = Name::new("stale");
    let mut learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    let producer = attach(&name).unwrap();
    (1..=2).for_each(|value| send(&producer, value));
    learner.kill();
    drop(producer);
    assert!(!Segment::open(&name, None).unwrap().is_live().unwrap());
    assert_refused!(open(&name, IfExists::Fail), Error::Exists { .. });
    let consumer = open(&name, IfExists::Resume).unwrap();
    assert!(consumer.resumed());
    assert_eq!(receive(&consumer).len(), 2, "what was committed is still there");
    consumer.close().unwrap();
    leave_stale(&name);
    let consumer = open(&name, IfExists::Replace).unwrap();
    assert!(!consumer.resumed());
    assert_eq!(consumer.ring().segment().header().creator_pid, std::process::id());
    consumer.close().unwrap();
    leave_stale(&name);
    assert!(catalog::collect(&name).unwrap());
    assert!(!catalog::collect(&name).unwrap(), "it is gone already");
}

#[test]
fn a_segment_in_which_only_a_producer_lives_is_not_collected() {
    let name = Name::new("producer-lives");
    let mut learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    let producer = attach(&name).unwrap();
    learner.kill();
    assert!(!catalog::collect(&name).unwrap());
    assert_refused!(open(&name, IfExists::Replace), Error::InUse { alive: 1, .. });
    drop(producer);
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn the_segment_of_a_killed_learner_is_stale_and_one_that_waits_is_not() {
    let name = Name::new("killed-learner");
    let mut learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    assert!(!catalog::collect(&name).unwrap());
    let pid = learner.pid();
    assert_refused!(open(&name, IfExists::Replace), Error::InUse { creator, alive: 1, .. } if creator == pid);
    learner.kill();
    assert!(name.path().exists());
    assert!(!Segment::open(&name, None).unwrap().is_live().unwrap());
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn a_stopped_learner_is_alive() {
    let name = Name::new("stopped-learner");
    let learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    // SAFETY: a signal to our own child.
    assert_eq!(unsafe { libc::kill(learner.pid() as i32, libc::SIGSTOP) }, 0);
    let mut status = 0;
    // SAFETY: waits for our own child to stop.
    unsafe { libc::waitpid(learner.pid() as i32, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    assert!(!catalog::collect(&name).unwrap());
    assert_refused!(open(&name, IfExists::Replace), Error::InUse { alive: 1, .. });
    drop(learner);
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn a_segment_that_is_being_collected_is_as_good_as_gone() {
    let name = Name::new("collected");
    leave_stale(&name);
    let segment = Segment::open(&name, None).unwrap();
    let stale_owner = StaleOwner::of(&segment).unwrap().unwrap();
    assert_refused!(attach(&name), Error::NotFound { .. }); // Not NoSeat: nobody sits there.
    assert!(!segment.is_live().unwrap(), "who collects a segment does not live in it");
    drop(stale_owner);
    assert!(catalog::collect(&name).unwrap());
}

// ── collecting everything, in a directory of its own ───────────────────────────────────────────────────────────────

/// A directory in shared memory that no other test looks into.
struct Directory(PathBuf);

impl Directory {
    fn new(what: &str) -> Directory {
        let path = directory().join(&*Name::new(what));
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn files(&self) -> Vec<String> {
        fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn collecting_takes_every_stale_segment_and_no_other() {
    let directory = Directory::new("collector");
    let mut command = Actor::command("collector of its own directory", "mine");
    let collector = Actor::spawn(command.env("ROLLWAY_SHM_DIR", &directory.0)).unwrap();
    assert_eq!(collector.hear(), "done");
    collector.finish();
    assert_eq!(directory.files(), Vec::<String>::new());
}

fn play_collector(name: &str) {
    let stale = ["stale-1", "stale-2"].map(|suffix| format!("{name}-{suffix}"));
    stale.iter().for_each(|name| leave_stale(name));
    let live = create(&format!("{name}-live"));
    let stranger = directory().join(format!("{PREFIX}{name}-stranger"));
    fs::write(&stranger, "not a segment").unwrap();
    fs::write(directory().join("other"), "without our prefix").unwrap();
    let names = |entries: Vec<catalog::Entry>| entries.into_iter().map(|e| e.name).collect::<Vec<_>>();
    let [one, two] = &stale;
    let listed = names(catalog::list().unwrap());
    assert_eq!(listed, [format!("{name}-live"), one.clone(), two.clone(), format!("{name}-stranger")]);
    let mut removed = names(catalog::collect_all().unwrap());
    removed.sort();
    assert_eq!(removed, stale);
    assert!(stranger.exists(), "what is not ours is left alone");
    assert!(catalog::collect_all().unwrap().is_empty());
    live.close().unwrap();
    fs::remove_file(stranger).unwrap();
    fs::remove_file(directory().join("other")).unwrap();
    say("done");
}

#[test]
fn the_next_creation_collects_stale_segments_whose_names_nobody_chose() {
    let directory = Directory::new("auto");
    let start = |role: &str, name: &str| {
        let actor = Actor::spawn(Actor::command(role, name).env("ROLLWAY_SHM_DIR", &directory.0)).unwrap();
        assert_eq!(actor.hear(), "there");
        actor
    };
    let mut killed = start("auto-named learner", "auto-1");
    killed.kill();
    let mut chosen = start("learner", "chosen");
    assert_eq!(directory.files(), ["rollway.chosen"], "the next creation of any name collects it");
    chosen.kill();
    let alive = start("auto-named learner", "auto-2");
    let second = start("auto-named learner", "auto-3");
    let mut files = directory.files();
    files.sort();
    assert_eq!(
        files,
        ["rollway.auto-2", "rollway.auto-3", "rollway.chosen"],
        "neither the living nor the chosen"
    );
    drop((alive, second));
}

// ── races for one name ─────────────────────────────────────────────────────────────────────────────────────────────

/// Runs every racer again and again, each in threads of its own, for about a second.
#[test]
fn a_creation_among_many_segments_looks_at_some_and_the_next_ones_at_the_others() {
    let directory = Directory::new("many");
    let mut command = Actor::command("creator among many", "many");
    command.env("ROLLWAY_SHM_DIR", &directory.0);
    let creator = Actor::spawn(&mut command).unwrap();
    assert_eq!(creator.hear(), "all stale ones were found");
    creator.finish();
    assert_eq!(directory.files(), Vec::<String>::new());
}

/// Makes more live segments than one creation looks at, and stale ones among them.
fn play_creator_among_many(name: &str) {
    let live: Vec<_> =
        (0..200).map(|i| Segment::create(&segment_spec(&format!("{name}-{i}"))).unwrap()).collect();
    let seats: Vec<_> = live
        .into_iter()
        .map(|segment| {
            let segment = Arc::new(segment);
            let seat = Seat::take(segment.clone(), Role::Consumer, |_| {}).unwrap();
            segment.publish().unwrap();
            seat
        })
        .collect();
    for i in 0..20 {
        let stale = format!("{name}-stale-{i}");
        Segment::create(&Spec { auto_named: true, ..segment_spec(&stale) }).unwrap().publish().unwrap();
    }
    let left = || catalog::list().unwrap().iter().filter(|entry| entry.alive == 0).count();
    wait_until("creations find every stale segment", || {
        drop(Segment::create(&segment_spec(&format!("{name}-next"))).unwrap());
        left() == 0
    });
    assert_eq!(catalog::list().unwrap().len(), seats.len(), "no live one was touched");
    for seat in &seats {
        seat.segment().unlink().unwrap();
    }
    say("all stale ones were found");
}

fn race(racers: &[&(dyn Fn() + Sync)]) {
    let over = AtomicBool::new(false);
    let start = Barrier::new(racers.len() + 1);
    thread::scope(|scope| {
        for racer in racers {
            scope.spawn(|| {
                start.wait();
                // A racer that fails ends the race for all.
                let end = EndOnDrop(&over);
                while !over.load(Ordering::Relaxed) {
                    racer();
                }
                std::mem::forget(end);
            });
        }
        start.wait();
        let started = Instant::now();
        wait_until("the race is over", || {
            started.elapsed().as_millis() > 1000 || over.load(Ordering::Relaxed)
        });
        over.store(true, Ordering::Relaxed);
    });
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_name_never_leads_to_two_live_segments_in_any_race() {
    let name = Name::new("race");
    let live = AtomicUsize::new(0);
    let (created, attached, collected) = <(AtomicUsize, AtomicUsize, AtomicUsize)>::default();
    let take_seat = |segment: &Arc<Segment>, role| Seat::take(segment.clone(), role, |_| {});
    // One creator removes its name before it leaves; the other leaves it stale.
    let create = |unlinks: bool| {
        // More seats than racers: a test beside us that starts a process keeps a copy of our leases alive until its exec.
        let spec = Spec { seats: 64, ..segment_spec(&name) };
        let segment = Arc::new(Segment::create(&spec).unwrap());
        let seat = take_seat(&segment, Role::Consumer).unwrap();
        match segment.publish() {
            Ok(()) => created.fetch_add(1, Ordering::Relaxed),
            Err(Error::InUse { .. }) => return,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(live.fetch_add(1, Ordering::SeqCst), 0, "two live segments have one name");
        assert!(!segment.is_unlinked().unwrap(), "a live segment lost its name");
        live.fetch_sub(1, Ordering::SeqCst);
        if unlinks {
            assert!(segment.unlink().unwrap(), "nobody else may remove the name of a live segment");
        }
        drop(seat);
    };
    let attach =
        || match Segment::open(&name, Some(77)).map(Arc::new).and_then(|s| take_seat(&s, Role::Producer)) {
            Ok(seat) => {
                attached.fetch_add(1, Ordering::Relaxed);
                assert!(seat.is_alive(seat.owner().unwrap()));
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => panic!("{error:?}"),
        };
    let collect = || {
        collected.fetch_add(catalog::collect(&name).unwrap() as usize, Ordering::Relaxed);
    };
    let list = || drop(catalog::list().unwrap());
    race(&[&|| create(true), &|| create(false), &|| create(false), &attach, &attach, &collect, &list]);
    catalog::collect(&name).unwrap();
    println!("created {created:?}, attached {attached:?}, collected {collected:?}");
    for count in [created, attached, collected] {
        assert!(count.into_inner() > 0, "the race is one");
    }
}

#[test]
fn learners_that_resume_one_name_at_once_meet_in_one_ring() {
    let name = Name::new("resume-race");
    let (created, resumed) = <(AtomicUsize, AtomicUsize)>::default();
    let resume = || match open(&name, IfExists::Resume) {
        Ok(consumer) => {
            let count = if consumer.resumed() { &resumed } else { &created };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => panic!("{error:?}"),
    };
    race(&[&resume, &resume, &|| drop(catalog::collect(&name))]);
    println!("created {created:?}, resumed {resumed:?}");
    assert!(created.into_inner() > 0);
}

// ── waiting for a name ─────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_name_that_appears_late_is_found() {
    let name = Name::new("late");
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| arrival::wait_for(&name, Deadline::after(Some(LONG)))));
        let other = Name::new("late-other");
        create(&other).close().unwrap(); // Wakes the waiters, who go on waiting.
        let consumer = create(&name);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
        arrival::wait_for(&name, Deadline::Now).unwrap();
        consumer.close().unwrap();
    });
}

#[test]
fn a_name_that_does_not_appear_is_not_found_when_the_time_is_over() {
    let name = Name::new("never");
    let patience = Duration::from_millis(50);
    let started = Instant::now();
    assert_refused!(arrival::wait_for(&name, Deadline::after(Some(patience))), Error::NotFound { .. });
    assert!(started.elapsed() >= patience);
    assert_refused!(arrival::wait_for(&name, Deadline::Now), Error::NotFound { .. });
}

#[test]
fn a_segment_that_is_replaced_while_one_attaches_is_not_what_one_is_told_of() {
    let name = Name::new("replaced");
    let mut looks = 0;
    let mut consumer = None;
    let attached = arrival::attach(&name, Deadline::Now, || {
        looks += 1;
        if looks > 1 {
            return attach(&name);
        }
        // What we met had another shape, and is gone by the time that somebody asks who lives there.
        consumer = Some(create(&name));
        Err(Error::Closed)
    });
    assert!(attached.is_ok() && looks == 2, "{attached:?}");
    // One that lives, and does not fit when looked at twice, does not fit.
    looks = 0;
    let misfit = arrival::attach(&name, Deadline::after(Some(LONG)), || -> Result<()> {
        looks += 1;
        Err(Error::Closed)
    });
    assert!(matches!(misfit, Err(Error::Closed)) && looks == 2);
}

#[test]
fn segments_that_come_and_go_do_not_end_the_wait_before_its_time() {
    let name = Name::new("come-and-go");
    let mut consumer = None;
    let mut looks = 0;
    // Each time, what was opened is shut down and another one has its name.
    let attached = arrival::attach(&name, Deadline::after(Some(LONG)), || {
        looks += 1;
        if looks > 5 {
            return attach(&name);
        }
        drop(consumer.take());
        consumer = Some(create(&name));
        Err(Error::Closed)
    });
    assert!(attached.is_ok() && looks == 6, "{attached:?} after {looks} looks");
    drop(attached);
    consumer.unwrap().close().unwrap();
}

// ── full memory ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn full_memory_is_an_error_at_creation_that_says_how_much_there_is() {
    let directory = Directory::new("tiny");
    let mut command = Actor::command("creator in a tiny directory", "tiny");
    command.env("ROLLWAY_SHM_DIR", &directory.0);
    let mount_point = c_path(&directory.0);
    // SAFETY: only system calls, between fork and exec.
    unsafe { command.pre_exec(move || mount_tiny_tmpfs(&mount_point)) };
    let creator = match Actor::spawn(&mut command) {
        Ok(creator) => creator,
        Err(error) => {
            println!("not tested: mounting a small tmpfs is not permitted here ({error})");
            return;
        }
    };
    assert_eq!(creator.hear(), "done");
    creator.finish();
}

fn c_path(path: &Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// One mebibyte, seen by this process alone, and gone with it.
fn mount_tiny_tmpfs(at: &std::ffi::CStr) -> std::io::Result<()> {
    let check = |rc: i32| if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    let none = std::ptr::null();
    // SAFETY: system calls with strings that end in a zero.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
        check(libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=1m".as_ptr().cast()))
    }
}

fn play_creator_in_a_tiny_directory(name: &str) {
    let spec = |leaf_bytes| RingSpec { leaf_bytes, ..ring_spec(name) };
    let mebibyte = 1u64 << 20;
    for if_exists in [IfExists::Resume, IfExists::Replace, IfExists::Fail] {
        let refused = Consumer::open(&spec(&[1 << 19]), if_exists, None);
        assert_refused!(refused, Error::NoMemory { need, total, free, dir, .. }
            if need > mebibyte && total == mebibyte && free <= total && *dir == *directory().to_str().unwrap());
    }
    let small = Consumer::open(&spec(&[1 << 17]), IfExists::Fail, None).unwrap();
    let other = RingSpec { name: Some("second"), ..spec(&[1 << 17]) };
    let refused = Consumer::open(&other, IfExists::Fail, None);
    assert_refused!(refused, Error::NoMemory { free, .. } if free < mebibyte);
    let producer = attach_with(name, &[1 << 17]);
    for _ in 0..4 {
        let slot = Producer::reserve(&producer, 1, Deadline::Now).unwrap().unwrap();
        // SAFETY: the slot is ours, and its leaf is that long. Every page is there: no SIGBUS.
        unsafe { slot.leaf(0).write_bytes(0xab, 1 << 17) };
        slot.commit(0);
    }
    small.close().unwrap();
    drop((small, producer));
    Consumer::open(&other, IfExists::Fail, None).unwrap().close().unwrap();
    assert_eq!(fs::read_dir(directory()).unwrap().count(), 0);
    say("done");
}

fn attach_with(name: &str, leaves: &[usize]) -> Producer {
    let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
    Producer::attach(name, SCHEMA, leaves, spec).unwrap()
}

// ── seats ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn there_are_as_many_seats_as_asked_for_and_they_are_used_again() {
    let name = Name::new("seats");
    let consumer = create(&name);
    for _ in 0..3 {
        let mut producers: Vec<Producer> = (1..SEATS).map(|_| attach(&name).unwrap()).collect();
        assert_refused!(attach(&name), Error::NoSeat { seats: SEATS, .. });
        assert_refused!(open(&name, IfExists::Resume), Error::NoSeat { seats: SEATS, .. });
        assert_eq!(consumer.producers().alive, SEATS - 1);
        producers.swap_remove(0);
        producers.push(attach(&name).unwrap());
        assert_refused!(attach(&name), Error::NoSeat { .. });
    }
    assert_eq!(consumer.producers().alive, 0);
    assert_eq!(consumer.producers().died, Vec::<u32>::new());
    consumer.close().unwrap();
}

#[test]
fn one_who_sits_down_again_is_another_owner() {
    let name = Name::new("lives");
    let segment = Arc::new(Segment::create(&segment_spec(&name)).unwrap());
    let take_seat = || Seat::take(segment.clone(), Role::Producer, |_| panic!("nobody died here")).unwrap();
    let witness = take_seat();
    let first = take_seat();
    let owner = first.owner().unwrap();
    assert!(witness.is_alive(owner) && first.is_alive(owner));
    drop(first);
    assert!(!witness.is_alive(owner), "who left holds nothing any more");
    let second = take_seat();
    assert_eq!(second.owner().unwrap().seat(), owner.seat());
    assert_ne!(second.owner().unwrap(), owner);
    assert!(!witness.is_alive(owner) && witness.is_alive(second.owner().unwrap()));
}

#[test]
fn the_seat_of_a_dead_producer_is_swept_by_the_next_one() {
    let name = Name::new("swept");
    let consumer = create(&name);
    let mut claimer = Actor::start("claimer", &name);
    assert_eq!(claimer.hear(), "claimed");
    assert_eq!(consumer.ring().census().claimed_slots, 1);
    assert_eq!(consumer.ring().writers(), [(claimer.pid(), 1)]);
    claimer.kill();
    assert_eq!(consumer.ring().census().claimed_slots, 1, "nobody has looked yet");
    let producer = attach(&name).unwrap();
    assert_eq!(consumer.ring().census().claimed_slots, 0);
    assert_eq!(consumer.ring().protocol().control.counters.recovered_slots.load(Ordering::Relaxed), 1);
    (1..=2).for_each(|value| send(&producer, value));
    assert_eq!(receive(&consumer).len(), 2, "the batch is whole: the dead one's slot was used again");
    consumer.close().unwrap();
}

#[test]
fn what_a_dead_producer_claimed_is_not_taken_back_while_somebody_stands_surety() {
    let name = Name::new("delegated");
    let consumer = create(&name);
    let mut claimer = Actor::start("claimer", &name);
    assert_eq!(claimer.hear(), "claimed");
    let (segment, owner) = (consumer.ring().segment(), Owner::new(1, 1));
    let (first, second) = (
        DelegatedLease::hold_for(segment, owner).unwrap(),
        DelegatedLease::hold_for(segment, owner).unwrap(),
    );
    claimer.kill();
    let witness = attach(&name).unwrap();
    assert_eq!(witness.owner().unwrap().seat(), 2, "the dead one's seat is not to be had");
    drop(first);
    assert_eq!(attach(&name).unwrap().owner().unwrap().seat(), 3, "the other one may still be writing");
    assert_eq!(consumer.ring().census().claimed_slots, 1);
    assert_eq!((consumer.producers().alive, consumer.producers().died), (2, vec![]));
    assert_refused!(DelegatedLease::hold_for(segment, owner), Error::PeersGone(_));
    drop(second);
    assert_eq!((consumer.producers().alive, consumer.producers().died), (1, vec![claimer.pid()]));
    assert_eq!(attach(&name).unwrap().owner().unwrap().seat(), 1);
    assert_eq!(consumer.ring().census().claimed_slots, 0);
    consumer.close().unwrap();
}

#[test]
fn a_surety_for_one_who_left_in_good_order_keeps_nobody_from_its_seat() {
    let name = Name::new("delegated-left");
    let consumer = create(&name);
    let producer = attach(&name).unwrap();
    let owner = producer.owner().unwrap();
    let _surety = DelegatedLease::hold_for(consumer.ring().segment(), owner).unwrap();
    drop(producer);
    let mut claimer = Actor::start("claimer", &name);
    assert_eq!(claimer.hear(), "claimed");
    claimer.kill();
    let next = attach(&name).unwrap().owner().unwrap();
    assert!(next.seat() == owner.seat() && next != owner);
    assert_eq!(consumer.ring().census().claimed_slots, 0, "it was for another holder of the seat");
    consumer.close().unwrap();
}

#[test]
fn a_dead_producer_is_named_until_its_seat_is_taken_again() {
    let name = Name::new("named-dead");
    let consumer = create(&name);
    let mut claimer = Actor::start("claimer", &name);
    assert_eq!(claimer.hear(), "claimed");
    assert_eq!((consumer.producers().alive, consumer.producers().died), (1, vec![]));
    claimer.kill();
    assert_eq!((consumer.producers().alive, consumer.producers().died), (0, vec![claimer.pid()]));
    let _producer = attach(&name).unwrap();
    assert_eq!((consumer.producers().alive, consumer.producers().died), (1, vec![]));
    consumer.close().unwrap();
}

#[test]
fn of_consumers_that_close_at_once_one_shuts_the_ring_down() {
    let name = Name::new("close-race");
    for _ in 0..200 {
        let consumers =
            [create(&name), open(&name, IfExists::Resume).unwrap(), open(&name, IfExists::Resume).unwrap()];
        let start = Barrier::new(consumers.len());
        thread::scope(|scope| {
            for consumer in &consumers {
                scope.spawn(|| {
                    start.wait();
                    consumer.close().unwrap();
                });
            }
        });
        assert!(consumers[0].ring().is_closed());
        assert!(!name.path().exists());
    }
}

#[test]
fn a_dead_consumer_does_not_keep_the_ring_open() {
    let name = Name::new("dead-consumer");
    let mut learner = Actor::start("learner", &name);
    assert_eq!(learner.hear(), "there");
    let consumer = open(&name, IfExists::Resume).unwrap();
    learner.kill();
    consumer.close().unwrap();
    assert!(consumer.ring().is_closed());
    assert!(!name.path().exists());
}

// ── fork ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_forked_child_neither_keeps_its_parents_lease_nor_loses_the_ring() {
    let name = Name::new("fork");
    let consumer = create(&name);
    let mut forker = Actor::start("forker", &name);
    let first_id: u32 = forker.hear().strip_prefix("child of ").unwrap().parse().unwrap();
    assert_eq!(consumer.producers().alive, 1, "a child that has not used the ring is not in it");
    forker.kill();
    let census = consumer.producers();
    assert_eq!(
        (census.alive, census.died),
        (0, vec![forker.pid()]),
        "the child lives; its parent's lease does not"
    );
    forker.tell("send");
    let sent = forker.hear();
    let second_id = sent.strip_prefix("sent as ").and_then(|rest| rest.strip_suffix(" of 1")).unwrap();
    let second_id: u32 = second_id.parse().unwrap();
    assert_ne!(first_id, second_id, "the child is a producer of its own");
    assert_eq!(receive(&consumer), [(1, first_id, 0), (2, second_id, 0)]);
    assert_eq!(consumer.producers().alive, 1);
    drop(forker.orders.take());
    wait_until("the child has left", || consumer.producers().alive == 0);
    assert_eq!(consumer.producers().died, Vec::<u32>::new(), "it left properly, from its dead parent's seat");
    consumer.close().unwrap();
}

#[cfg(feature = "fault")]
#[test]
fn a_thread_that_asks_who_lives_does_not_wait_for_one_that_takes_a_seat() {
    let name = Name::new("fork-threads");
    let consumer = create(&name);
    let producer = attach(&name).unwrap();
    let forker = Actor::start("forker with two threads", &name);
    assert_eq!(forker.hear(), "1 alive");
    assert_eq!(forker.hear(), "has a seat");
    forker.finish();
    drop(producer);
    consumer.close().unwrap();
}

#[test]
fn a_seat_record_fills_two_cache_lines() {
    assert_eq!((size_of::<SeatRecord>(), align_of::<SeatRecord>()), (128, 64));
}
