//! The learner's end: listens, and runs a task for each client.
//!
//! One thread (or as many as asked for) runs a single-threaded event loop; a connection stays on the thread that it
//! was given to. Nothing here blocks a loop: waiting for room is the room waiter's business ([`super::room_waiter`]).
//!
//! Those who have not proved themselves yet are *unauthenticated*. When there are as many connections as allowed, a
//! newcomer takes the place of the oldest unauthenticated one; so strangers that only connect keep nobody out.

use super::connection::{self, End, FIRST_CREDIT};
use super::guesses::Guesses;
use super::ingress::Ingress;
use super::session::Sessions;
use super::staging::Staging;
use super::weight_source::WeightSource;
use crate::error::{Error, Result};
use crate::net::wire::frame::{Content, GoodbyeReason, Refusal};
use crate::net::wire::limits::{check_sample_bytes, within_reason};
use crate::net::wire::stats::{ServerCounters, ServerStats, add};
use crate::net::wire::tls::ServerTls;
use crate::net::wire::token::Token;
use crate::net::wire::token_file::{self, TokenFile};
use crate::net::{Endpoint, Transport};
use crate::sys::clock::monotonic_ns;
use crate::sys::close_on_fork::CloseOnFork;
use crate::weights::Weights;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

/// For how long all connections stage their frames after one was late.
const LATE: Duration = Duration::from_secs(1);
/// Shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;
/// After a failed `accept` (too many open files), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long `stop` lets connections say goodbye.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// So many ports more are tried, for so long, where any will do and the first one's token file cannot be put in place.
const MORE_PORTS: usize = 64;
const PORT_LIMIT: Duration = Duration::from_secs(5);

/// What a TCP transport should be. `..TcpServerSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct TcpServerSpec {
    pub host: String,
    /// 0: any that is free.
    pub port: u16,
    /// `None`: makes one, and keeps it where clients of the same user find it ([`token_file`]).
    pub token: Option<Vec<u8>>,
    pub tls: Option<ServerTls>,
    pub io_threads: usize,
    /// Those that still shake hands among them.
    pub max_connections: usize,
    /// Clients that are remembered, connected or not.
    pub max_sessions: usize,
    /// Data frames of one client under way, at most.
    pub max_inflight_frames: u32,
    /// From the first byte to the end of the handshake.
    pub handshake_timeout: Duration,
    /// A client that sends less of a frame in this time than 64 KiB, or the rest of it, is cut.
    pub frame_timeout: Duration,
    /// How long a frame may lie in slots, or in room of the lane, before all of it has arrived.
    pub claim_timeout: Duration,
    /// Memory for frames that take longer, in all. As large as the largest frame at least.
    pub staging_bytes: usize,
    pub keepalive: Duration,
    /// How long a client without a connection is remembered.
    pub session_ttl: Duration,
}

impl Default for TcpServerSpec {
    fn default() -> TcpServerSpec {
        TcpServerSpec {
            host: "127.0.0.1".to_owned(),
            port: 0,
            token: None,
            tls: None,
            io_threads: 1,
            max_connections: 1024,
            max_sessions: 4096,
            max_inflight_frames: 32,
            handshake_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(5),
            claim_timeout: Duration::from_millis(200),
            staging_bytes: 256 << 20,
            keepalive: Duration::from_secs(5),
            session_ttl: Duration::from_secs(600),
        }
    }
}

impl<I: Into<Ingress>> Transport<I> for TcpServerSpec {
    fn start(&self, ingress: I) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(TcpServer::start(ingress, self.clone())?))
    }
}

/// What the tasks share.
#[derive(Debug)]
pub struct Shared {
    /// `None`: nobody brings anything here.
    pub ingress: Option<Ingress>,
    /// `None`: nobody gets weights here.
    pub weight_source: Option<WeightSource>,
    pub spec: TcpServerSpec,
    pub token: Token,
    /// `None`: the token is one that we made, and nobody guesses it.
    pub guesses: Option<Guesses>,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub sessions: Arc<Sessions>,
    pub staging: Arc<Staging>,
    /// Until when all connections stage their frames from the start, in nanoseconds of the monotonic clock; 0: they do not.
    late_until_ns: AtomicU64,
    pub counters: ServerCounters,
    pub stop: watch::Sender<bool>,
    pub window: u32,
    unauthenticated: Mutex<VecDeque<(u64, oneshot::Sender<()>)>>,
    next_admission: AtomicU64,
    last_refusal: Mutex<Option<Refused>>,
}

/// A client that was not let in, or whose record was refused, as the learner may want to know.
#[derive(Debug, Clone)]
pub struct Refused {
    pub peer: String,
    pub code: Refusal,
    pub text: String,
    /// What the client brought, where the schema was the reason, and of what it is one.
    pub schema: Option<(Content, Vec<u8>)>,
    /// When that was.
    pub at: Instant,
}

impl Shared {
    /// A frame did not arrive in time, and had to leave claimed room.
    pub fn note_late(&self) {
        self.late_until_ns.store(monotonic_ns() + LATE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether that happened within the last second.
    pub fn was_late_lately(&self) -> bool {
        let until = self.late_until_ns.load(Ordering::Relaxed);
        if until == 0 {
            return false; // As nearly always: no look at the clock.
        }
        let late = monotonic_ns() < until;
        if !late {
            // One that was noted meanwhile may be lost: the next frame that is late notes it again.
            self.late_until_ns.store(0, Ordering::Relaxed);
        }
        late
    }

    /// How many frames a client may have under way now: few while others wait for room.
    pub fn credit(&self) -> u32 {
        let crowded = self.ingress.as_ref().is_some_and(|ingress| ingress.room_waiter().has_waiters());
        if crowded { FIRST_CREDIT.min(self.window) } else { self.window }
    }

    /// The schema of what a client may bring, or get, here; or what it is told that wants something else.
    pub fn expects(&self, content: Content) -> Result<&[u8], &'static str> {
        match (content, &self.ingress, &self.weight_source) {
            (Content::Weights, _, Some(weight_source)) => Ok(&weight_source.inventory().schema),
            (Content::Weights, _, None) => {
                Err("it offers no weights on this port. Give its TcpTransport weights=…, or \
                                              serve them on a port of their own")
            }
            (_, Some(ingress), _) if ingress.content() == content => Ok(ingress.schema()),
            (_, Some(Ingress::Records(_)), _) => {
                Err("it takes records, each of its own size, and this client sends \
                                                    samples of one size. Use a client of records, or the port of a \
                                                    server of samples")
            }
            (_, Some(Ingress::Samples(_)), _) => {
                Err("it takes samples of one size, and this client sends records. Use a \
                                                    client of samples, or the port of a server of records")
            }
            (_, None, _) => {
                Err("it only gives out weights on this port, and takes nothing. Use the port of a server of \
                                 samples or records")
            }
        }
    }

    /// Whether a client of weights need not come again.
    pub fn has_no_more_weights(&self) -> bool {
        self.weight_source.as_ref().is_some_and(WeightSource::is_over)
    }

    /// Counts how a connection ended.
    pub fn note(&self, peer: &str, end: &End) {
        let counters = &self.counters;
        match end {
            End::Stranger => add(&counters.refused_protocol, 1),
            End::Broken => {}
            End::Damaged(_) => add(&counters.cut_damaged, 1),
            End::Malformed(text) => {
                add(&counters.refused_records, 1);
                let (peer, text) = (peer.to_owned(), text.clone());
                let at = Instant::now();
                let refused = Refused { peer, code: Refusal::Protocol, text, schema: None, at };
                *lock(&self.last_refusal) = Some(refused);
            }
            End::Refused(code, text, schema) => {
                let counter = match code {
                    Refusal::TokenNeeded | Refusal::TokenWrong | Refusal::TokenUnexpected => {
                        &counters.refused_token
                    }
                    Refusal::Schema | Refusal::Content => &counters.refused_schema,
                    Refusal::Protocol => &counters.refused_protocol,
                    Refusal::Busy => &counters.refused_busy,
                    Refusal::SessionUnknown | Refusal::Closed => &counters.refused_other,
                };
                add(counter, 1);
                let refused = Refused {
                    peer: peer.to_owned(),
                    code: *code,
                    text: text.clone(),
                    schema: schema.clone(),
                    at: Instant::now(),
                };
                *lock(&self.last_refusal) = Some(refused);
            }
            End::Goodbye(GoodbyeReason::TooSlow, _) => add(&counters.cut_slow, 1),
            End::Goodbye(GoodbyeReason::Silent, _) => add(&counters.cut_silent, 1),
            End::Goodbye(..) => {}
        }
    }

    /// Admits a connection as unauthenticated, in place of the oldest such one if need be. `None`: full of those who have a right
    /// to be.
    fn admit(self: &Arc<Self>) -> Option<Admission> {
        let mut unauthenticated = lock(&self.unauthenticated);
        if self.counters.connections.load(Ordering::Relaxed) >= self.spec.max_connections as u64 {
            unauthenticated.pop_front()?; // Its receiver notices.
        }
        add(&self.counters.connections, 1);
        let (sender, receiver) = oneshot::channel();
        let id = self.next_admission.fetch_add(1, Ordering::Relaxed);
        unauthenticated.push_back((id, sender));
        Some(Admission { server: self.clone(), id, evicted: Mutex::new(Some(receiver)) })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The admission of one connection, which is unauthenticated at first.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Shared>,
    id: u64,
    evicted: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Admission {
    /// Returns when a newcomer needs our place.
    pub fn evicted(&self) -> impl Future<Output = End> + 'static {
        let receiver = lock(&self.evicted).take();
        async move {
            match receiver {
                Some(receiver) => drop(receiver.await),
                None => std::future::pending().await,
            }
            End::Stranger
        }
    }

    /// The client has proved itself.
    pub fn mark_authenticated(&self) {
        lock(&self.server.unauthenticated).retain(|(id, _)| *id != self.id);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.mark_authenticated();
        self.server.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A TCP transport at work. Dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pid: u32,
}

impl TcpServer {
    /// Binds and begins to listen; returns when clients can connect.
    pub fn start(ingress: impl Into<Ingress>, spec: TcpServerSpec) -> Result<TcpServer> {
        TcpServer::open(Some(ingress.into()), None, spec)
    }

    /// As [`start`](Self::start), and gives these weights to those who ask for them, on the same port. Without an ingress, that is
    /// all it does.
    pub fn with_weights(
        ingress: Option<Ingress>,
        weights: Arc<Weights>,
        spec: TcpServerSpec,
    ) -> Result<TcpServer> {
        TcpServer::open(ingress, Some(weights), spec)
    }

    fn open(
        ingress: Option<Ingress>,
        weights: Option<Arc<Weights>>,
        mut spec: TcpServerSpec,
    ) -> Result<TcpServer> {
        for time in [
            &mut spec.handshake_timeout,
            &mut spec.frame_timeout,
            &mut spec.claim_timeout,
            &mut spec.keepalive,
            &mut spec.session_ttl,
        ] {
            *time = within_reason(*time);
        }
        if let Some(Ingress::Samples(ingress)) = &ingress {
            check_sample_bytes(ingress.sample_bytes())?;
        }
        let at_least_one = |what, value: u64| match value {
            0 => Err(Error::OutOfRange { what, value, range: "at least 1".to_owned() }),
            _ => Ok(()),
        };
        at_least_one("io_threads", spec.io_threads as u64)?;
        at_least_one("max_connections", spec.max_connections as u64)?;
        at_least_one("max_sessions", spec.max_sessions as u64)?;
        at_least_one("max_inflight_frames", spec.max_inflight_frames as u64)?;
        let given = spec.token.as_deref().map(Token::new).transpose()?;
        let tls = spec.tls.as_ref().map(ServerTls::config).transpose()?;
        // We listen, and answer nobody yet: whom we answer finds the file (F1).
        let (close_on_fork, listener, address, token, file) = match given {
            Some(token) => {
                let (close_on_fork, listener, address) = bind(&spec)?;
                token_file::clear(address);
                (close_on_fork, listener, address, token, None)
            }
            None => {
                let token = Token::generate()?;
                let _ = token_file::collect(); // What dead servers left on other addresses.
                let (close_on_fork, listener, address, file) = bind_with_file(&spec, &token)?;
                (close_on_fork, listener, address, token, Some(file))
            }
        };
        let shared = Arc::new(Shared {
            window: spec.max_inflight_frames,
            sessions: Arc::new(Sessions::new(spec.max_sessions, spec.session_ttl)),
            late_until_ns: AtomicU64::new(0),
            staging: Staging::new(spec.staging_bytes.max(ingress.as_ref().map_or(0, Ingress::largest))),
            ingress,
            weight_source: weights.map(WeightSource::new).transpose()?,
            spec,
            token,
            guesses: file.is_none().then(Guesses::default),
            tls,
            counters: ServerCounters::default(),
            stop: watch::Sender::new(false),
            unauthenticated: Mutex::default(),
            next_admission: AtomicU64::new(0),
            last_refusal: Mutex::default(),
        });
        let server = TcpServer { shared, address, threads: Mutex::default(), pid: std::process::id() };
        server.start_threads(close_on_fork, listener, file)?;
        Ok(server)
    }

    /// Starts the loops; returns when the first one listens. On failure, those that run are stopped by `Drop`.
    fn start_threads(
        &self,
        close_on_fork: CloseOnFork,
        listener: TcpListener,
        file: Option<TokenFile>,
    ) -> Result<()> {
        let mut hands = Vec::new();
        for number in 1..self.shared.spec.io_threads {
            let (hand, mut arrivals) = mpsc::unbounded_channel();
            hands.push(hand);
            self.start_loop(
                number,
                || Ok(()),
                async move |(), shared: &Arc<Shared>, tasks: &mut Tasks| {
                    while let Some((stream, peer, admission)) = arrivals.recv().await {
                        tasks.take(shared, stream, peer, admission);
                    }
                },
            )?;
        }
        self.start_loop(
            0,
            || Ok((close_on_fork, tokio::net::TcpListener::from_std(listener)?)),
            async move |(close_on_fork, listener), shared: &Arc<Shared>, tasks: &mut Tasks| {
                accept(&listener, shared, tasks, hands).await;
                close_on_fork.close(listener);
                drop(file); // After the listener, and by this thread, which a forked child does not have.
            },
        )
    }

    /// Prepares and runs `work` in a loop of its own, then lets the tasks end. Returns when it is prepared.
    fn start_loop<T: 'static>(
        &self,
        number: usize,
        prepare: impl FnOnce() -> std::io::Result<T> + Send + 'static,
        work: impl AsyncFnOnce(T, &Arc<Shared>, &mut Tasks) + Send + 'static,
    ) -> Result<()> {
        let (ready, started) = std_mpsc::channel();
        let shared = self.shared.clone();
        let thread = crate::sys::thread::spawn(&format!("rollway-tcp-{number}"), move || {
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
            let mut tasks = Tasks::default();
            LocalSet::new().block_on(&runtime, async {
                work(prepared, &shared, &mut tasks).await;
                let _ = tokio::time::timeout(STOP_LIMIT, tasks.finished()).await;
            });
        })?;
        lock(&self.threads).push(thread);
        match started.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::io("cannot start an event loop", error)),
            Err(_) => Err(Error::io("cannot start an event loop", std::io::Error::other("its thread ended"))),
        }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What clients must know, whether it was given or made.
    pub fn token(&self) -> &[u8] {
        self.shared.token.secret()
    }

    pub fn stats(&self) -> ServerStats {
        self.shared.counters.snapshot()
    }

    /// Clients that are remembered.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.count()
    }

    /// The last client that was not let in, and why.
    pub fn last_refusal(&self) -> Option<Refused> {
        lock(&self.shared.last_refusal).clone()
    }

    /// Says goodbye to the clients, gives back their slots and ends the threads. Idempotent.
    pub fn stop(&self) {
        if self.pid != std::process::id() {
            return; // A forked child: the threads are not in it.
        }
        self.shared.stop.send_replace(true);
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.ingress.iter().for_each(Ingress::close);
        self.shared.weight_source.iter().for_each(WeightSource::close);
    }
}

impl Endpoint for TcpServer {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn stats(&self) -> Vec<(&'static str, u64)> {
        self.stats().entries()
    }

    fn stop(&self) {
        self.stop();
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The connections of one loop.
#[derive(Default)]
struct Tasks {
    running: tokio::task::JoinSet<()>,
}

impl Tasks {
    fn take(
        &mut self,
        shared: &Arc<Shared>,
        stream: std::net::TcpStream,
        peer: String,
        admission: Admission,
    ) {
        while self.running.try_join_next().is_some() {}
        let shared = shared.clone();
        self.running.spawn_local(async move {
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                connection::serve(stream, peer, shared, admission).await;
            }
        });
    }

    async fn finished(&mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

/// Listens, and leaves the token where clients of this user find it. Where any port will do, it takes another one if somebody
/// else has taken the name of the file.
fn bind_with_file(
    spec: &TcpServerSpec,
    token: &Token,
) -> Result<(CloseOnFork, TcpListener, SocketAddr, TokenFile)> {
    let deadline = Instant::now() + PORT_LIMIT;
    let mut passed = Vec::new(); // They stay open: the system gives no port twice.
    loop {
        let (close_on_fork, listener, address) = bind(spec)?;
        match TokenFile::create(address, token) {
            Ok(file) => return Ok((close_on_fork, listener, address, file)),
            Err(Error::TokenFile { path, what }) if spec.port == 0 => {
                if passed.len() == MORE_PORTS || Instant::now() > deadline {
                    let what = format!("{what}. So it is with {} other free ports", passed.len());
                    return Err(Error::TokenFile { path, what });
                }
                passed.push((close_on_fork, listener));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Listens, where no forked child does.
fn bind(spec: &TcpServerSpec) -> Result<(CloseOnFork, TcpListener, SocketAddr)> {
    let wanted = format!("{}:{}", spec.host, spec.port);
    let failed = |source| Error::Bind { address: wanted.clone(), source };
    let addresses: Vec<SocketAddr> =
        (spec.host.as_str(), spec.port).to_socket_addrs().map_err(failed)?.collect();
    if !addresses.iter().all(|address| address.ip().is_loopback()) {
        let length =
            spec.token.as_ref().ok_or_else(|| Error::TokenRequired { address: wanted.clone() })?.len();
        if length < SHORTEST_TOKEN {
            let range = format!("at least {SHORTEST_TOKEN} bytes where others can reach the address");
            return Err(Error::OutOfRange { what: "token length", value: length as u64, range });
        }
    }
    let (close_on_fork, listener) =
        CloseOnFork::opened(|| TcpListener::bind(&addresses[..])).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    // The standard library asks for a short queue; hundreds of workers start at once.
    rustix::net::listen(&listener, 1024).map_err(|errno| failed(errno.into()))?;
    let address = listener.local_addr().map_err(|e| Error::io("cannot read the address of a listener", e))?;
    Ok((close_on_fork, listener, address))
}

type Hand = mpsc::UnboundedSender<(std::net::TcpStream, String, Admission)>;

/// Takes in connections until the end, and hands them to the loops in turn.
async fn accept(
    listener: &tokio::net::TcpListener,
    shared: &Arc<Shared>,
    tasks: &mut Tasks,
    hands: Vec<Hand>,
) {
    let mut stop = shared.stop.subscribe();
    let mut stopped = std::pin::pin!(stop.wait_for(|stop| *stop));
    for turn in 0.. {
        let mut arrival = std::pin::pin!(listener.accept());
        let arrival = std::future::poll_fn(|cx| {
            if stopped.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            arrival.as_mut().poll(cx).map(Some)
        });
        let (stream, peer) = match arrival.await {
            None => return,
            Some(Ok(arrived)) => arrived,
            Some(Err(_)) => {
                add(&shared.counters.accept_errors, 1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        add(&shared.counters.arrived, 1);
        let Some(admission) = shared.admit() else {
            add(&shared.counters.refused_busy, 1);
            continue;
        };
        let Ok(stream) = stream.into_std() else { continue };
        match turn % (hands.len() + 1) {
            0 => tasks.take(shared, stream, peer.to_string(), admission),
            other => drop(hands[other - 1].send((stream, peer.to_string(), admission))),
        }
    }
}
