//! The learner's end: listens, and runs a task for each client.
//!
//! One thread or several run an event loop each ([`super::event_loops`]). Nothing here blocks a loop: a thread of its own waits
//! for room ([`super::room_waiter`]).
//!
//! A connection whose client has not proved itself yet is *unauthenticated*. When there are as many connections as allowed, a
//! new one takes the place of the oldest unauthenticated one, so strangers that only connect keep no client out.

use super::end::{End, Never, until_end};
use super::event_loops::{Arrival, EventLoops, Threads, start_loop};
use super::guesses::Guesses;
use super::ingress::Ingress;
use super::session::Sessions;
use super::shared::{Refused, Shared, TcpServerSpec};
use super::staging::Staging;
use super::weight_outlet::WeightOutlet;
use crate::error::{Error, Result};
use crate::net::wire::limits::{MAX_SAMPLE_BYTES, check, check_at_least_one, check_at_most, within_reason};
use crate::net::wire::stats::{ServerCounters, ServerStats, add};
use crate::net::wire::tls::ServerTls;
use crate::net::wire::token::Token;
use crate::net::wire::token_file::{self, TokenFile};
use crate::sys::fork::CloseOnFork;
use crate::sys::sync::AtomicU64;
use crate::sys::thread::{OwnedThread, lock};
use crate::weights::Weights;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A shorter token can be guessed.
const SHORTEST_TOKEN: usize = 16;
/// After a failed `accept` (too many open files), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// So many ports more are tried, for so long, where any will do and the first one's token file cannot be put in place.
const MORE_PORTS: usize = 64;
const PORT_LIMIT: Duration = Duration::from_secs(5);

/// A TCP transport at work. Dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The thread of the first loop, which accepts.
    acceptor: Option<OwnedThread>,
    /// Those of the other loops.
    threads: Threads,
}

impl TcpServer {
    /// Binds and begins to listen; returns when clients can connect.
    pub fn start(ingress: impl Into<Ingress>, spec: TcpServerSpec) -> Result<TcpServer> {
        TcpServer::serve(Some(ingress.into()), None, spec)
    }

    /// As [`start`](Self::start), but also, or only, sends these weights to clients that ask for them.
    pub fn serve(
        ingress: Option<Ingress>,
        weights: Option<Arc<Weights>>,
        spec: TcpServerSpec,
    ) -> Result<TcpServer> {
        TcpServer::serve_outlet(ingress, weights.map(WeightOutlet::new).transpose()?.map(Arc::new), spec)
    }

    /// As [`serve`](Self::serve), with what gives out the weights: that of a mirror, for instance.
    pub fn serve_outlet(
        ingress: Option<Ingress>,
        weights: Option<Arc<WeightOutlet>>,
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
            check_at_most("sample bytes", ingress.sample_bytes(), MAX_SAMPLE_BYTES)?;
        }
        check_at_least_one("threads", spec.threads.unwrap_or(1))?;
        check_at_least_one("max_connections", spec.max_connections)?;
        check_at_least_one("max_sessions", spec.max_sessions)?;
        check_at_least_one("max_inflight_frames", spec.max_inflight_frames as usize)?;
        let store = ingress.as_ref().map(|ingress| ingress.session_store());
        let sessions = Sessions::new(spec.max_sessions, spec.session_ttl, store)?;
        let given = spec.token.as_deref().map(Token::new).transpose()?;
        let tls = spec.tls.as_ref().map(ServerTls::config).transpose()?;
        // The server listens, but answers no client before the token file is there (F1).
        let (token, file, bound) = match given {
            Some(token) => {
                let bound = bind(&spec)?;
                token_file::clear(bound.address);
                (token, None, bound)
            }
            None => {
                let token = Token::generate()?;
                let _ = token_file::collect(); // What dead servers left on other addresses.
                let (bound, file) = bind_with_file(&spec, &token)?;
                (token, Some(file), bound)
            }
        };
        let shared = Arc::new(Shared {
            window: spec.max_inflight_frames,
            sessions: Arc::new(sessions),
            late_until_ns: AtomicU64::new(0),
            staging: Staging::new(
                spec.staging_bytes.max(ingress.as_ref().map_or(0, |ingress| ingress.facts().largest)),
            ),
            ingress,
            weight_outlet: weights,
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
        let (acceptor, threads) = (None, Threads::default());
        let mut server = TcpServer { shared, address: bound.address, acceptor, threads };
        server.start_accepting(bound, file)?;
        Ok(server)
    }

    /// Starts the first loop; returns when it listens.
    fn start_accepting(&mut self, bound: Bound, file: Option<TokenFile>) -> Result<()> {
        let Bound { close_on_fork, listener, .. } = bound;
        let threads = self.threads.clone();
        self.acceptor = Some(start_loop(
            self.shared.clone(),
            0,
            || Ok((close_on_fork, tokio::net::TcpListener::from_std(listener)?)),
            async move |(close_on_fork, listener), shared: &Arc<Shared>, tasks: &mut JoinSet<()>| {
                let Err(_) = accept(&listener, shared, EventLoops::new(shared, tasks, threads)).await;
                close_on_fork.close(listener);
                drop(file); // After the listener, and by this thread, which a forked child does not have.
            },
        )?);
        Ok(())
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

    /// Whether it was stopped: it feeds nothing, and has no seat any more.
    pub fn is_stopped(&self) -> bool {
        *self.shared.stop.borrow()
    }

    /// Says goodbye to the clients, gives back their slots and its seat, and ends the threads. Idempotent.
    pub fn stop(&self) {
        if !self.acceptor.as_ref().is_none_or(OwnedThread::is_here) {
            return; // A forked child: the threads are not in it.
        }
        self.shared.stop.send_replace(true);
        self.acceptor.iter().for_each(OwnedThread::join); // It starts no other loop from now on.
        lock(&self.threads).iter().for_each(OwnedThread::join);
        self.shared.ingress.iter().for_each(|ingress| ingress.close());
        self.shared.weight_outlet.iter().for_each(|outlet| outlet.close());
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A socket that listens, and that forked children close.
struct Bound {
    close_on_fork: CloseOnFork,
    listener: TcpListener,
    address: SocketAddr,
}

/// Listens, and writes the token file. Tries another port, where any will do, if another user has taken the name of the file.
fn bind_with_file(spec: &TcpServerSpec, token: &Token) -> Result<(Bound, TokenFile)> {
    let deadline = Instant::now() + PORT_LIMIT;
    let mut passed = Vec::new(); // They stay open, so that the system does not give the same port again.
    loop {
        let bound = bind(spec)?;
        match TokenFile::create(bound.address, token) {
            Ok(file) => return Ok((bound, file)),
            Err(Error::TokenFile { path, what }) if spec.port == 0 => {
                if passed.len() == MORE_PORTS || Instant::now() > deadline {
                    let what = format!("{what}. The same happened on {} other free ports", passed.len());
                    return Err(Error::TokenFile { path, what });
                }
                passed.push(bound);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Listens on the address of `spec`.
fn bind(spec: &TcpServerSpec) -> Result<Bound> {
    let wanted = format!("{}:{}", spec.host, spec.port);
    let failed = |source| Error::Bind { address: wanted.clone(), source };
    let addresses: Vec<SocketAddr> =
        (spec.host.as_str(), spec.port).to_socket_addrs().map_err(failed)?.collect();
    if !addresses.iter().all(|address| address.ip().is_loopback()) {
        let token = spec.token.as_ref().ok_or_else(|| Error::TokenRequired { address: wanted.clone() })?;
        let range = format!("at least {SHORTEST_TOKEN} bytes where others can reach the address");
        check(token.len() >= SHORTEST_TOKEN, "token length", token.len(), &range)?;
    }
    let (close_on_fork, listener) =
        CloseOnFork::opened(|| TcpListener::bind(&addresses[..])).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    // The standard library asks for a short queue; hundreds of workers start at once.
    rustix::net::listen(&listener, 1024).map_err(|errno| failed(errno.into()))?;
    let address = listener.local_addr().map_err(|e| Error::io("cannot read the address of a listener", e))?;
    Ok(Bound { close_on_fork, listener, address })
}

/// Accepts connections until the server stops, and hands them to the loops.
async fn accept(
    listener: &tokio::net::TcpListener,
    shared: &Arc<Shared>,
    mut loops: EventLoops<'_>,
) -> Result<Never, End> {
    loop {
        let (stream, peer) = match until_end(async { Ok(listener.accept().await) }, shared.stopped()).await? {
            Ok(arrived) => arrived,
            Err(_) => {
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
        loops.serve(Arrival { stream, peer: peer.to_string(), admission });
    }
}
