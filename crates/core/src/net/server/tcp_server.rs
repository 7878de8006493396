//! The learner's end: listens, and runs a task for each client.
//!
//! One thread (or as many as asked for) runs a single-threaded event loop; a connection stays on the thread that it
//! was given to. Nothing here blocks a loop: waiting for room is the room waiter's business ([`super::room_waiter`]).
//!
//! Those who have not proved themselves yet are *unauthenticated*. When there are as many connections as allowed, a
//! newcomer takes the place of the oldest unauthenticated one; so strangers that only connect keep nobody out.

use super::connection;
use super::guesses::Guesses;
use super::ingress::Ingress;
use super::session::Sessions;
use super::shared::{Admission, Refused, Shared, TcpServerSpec};
use super::staging::Staging;
use super::weight_source::WeightSource;
use crate::error::{Error, Result};
use crate::net::wire::limits::{check_sample_bytes, within_reason};
use crate::net::wire::stats::{ServerCounters, ServerStats, add};
use crate::net::wire::tls::ServerTls;
use crate::net::wire::token::Token;
use crate::net::wire::token_file::{self, TokenFile};
use crate::net::{Endpoint, Transport};
use crate::sys::fork::CloseOnFork;
use crate::sys::sync::AtomicU64;
use crate::sys::thread::{OwnedThread, lock};
use crate::weights::Weights;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

/// Shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;
/// After a failed `accept` (too many open files), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long `stop` lets connections say goodbye.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// So many ports more are tried, for so long, where any will do and the first one's token file cannot be put in place.
const MORE_PORTS: usize = 64;
const PORT_LIMIT: Duration = Duration::from_secs(5);

impl<I: Into<Ingress>> Transport<I> for TcpServerSpec {
    fn start(&self, ingress: I) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(TcpServer::start(ingress, self.clone())?))
    }
}

/// A TCP transport at work. Dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<OwnedThread>,
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
        let mut server = TcpServer { shared, address, threads: Vec::new() };
        server.start_threads(close_on_fork, listener, file)?;
        Ok(server)
    }

    /// Starts the loops; returns when the first one listens. On failure, those that run are stopped by `Drop`.
    fn start_threads(
        &mut self,
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
        &mut self,
        number: usize,
        prepare: impl FnOnce() -> std::io::Result<T> + Send + 'static,
        work: impl AsyncFnOnce(T, &Arc<Shared>, &mut Tasks) + Send + 'static,
    ) -> Result<()> {
        let (ready, started) = std_mpsc::channel();
        let shared = self.shared.clone();
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
            let mut tasks = Tasks::default();
            LocalSet::new().block_on(&runtime, async {
                work(prepared, &shared, &mut tasks).await;
                let _ = tokio::time::timeout(STOP_LIMIT, tasks.finished()).await;
            });
        })?;
        self.threads.push(thread);
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
        if !self.threads.iter().all(OwnedThread::is_here) {
            return; // A forked child: the threads are not in it.
        }
        self.shared.stop.send_replace(true);
        self.threads.iter().for_each(OwnedThread::join);
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
