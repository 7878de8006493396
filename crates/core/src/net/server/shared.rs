//! What the tasks of a server share: the settings, the ingress, the weights, the counters, and the admissions.

use super::end::End;
use super::guesses::Guesses;
use super::ingress::Ingress;
use super::session::Sessions;
use super::staging::Staging;
use super::weight_outlet::WeightOutlet;
use crate::net::wire::frame::{Content, GoodbyeReason, Refusal};
use crate::net::wire::stats::{ServerCounters, add};
use crate::net::wire::tls::ServerTls;
use crate::net::wire::token::Token;
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, Ordering};
use crate::sys::thread::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Frames that a client may have under way before the first acknowledgement, and while other clients wait for room.
pub const FIRST_CREDIT: u32 = 4;
/// For how long all connections stage their frames after one was late.
const LATE: Duration = Duration::from_secs(1);

const NO_WEIGHTS: &str = "it offers no weights on this port. Give its TcpTransport weights=…, or serve them on a port of their own";
const ONLY_RECORDS: &str = "it takes records, each of its own size, and this client sends samples of one size. Use a client of \
     records, or the port of a server of samples";
const ONLY_SAMPLES: &str = "it takes samples of one size, and this client sends records. Use a client of samples, or the port of a \
     server of records";
const ONLY_WEIGHTS: &str = "it only gives out weights on this port, and takes nothing. Use the port of a server of samples or records";

/// What a TCP transport should be. `..TcpServerSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct TcpServerSpec {
    pub host: String,
    /// 0: any that is free.
    pub port: u16,
    /// `None`: the server makes one, in a file that clients of the same user find ([`token_file`]).
    pub token: Option<Vec<u8>>,
    pub tls: Option<ServerTls>,
    /// Event loops, at most. `None`: as many as the machine has cores for.
    pub threads: Option<usize>,
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
            threads: None,
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

/// What the tasks share.
#[derive(Debug)]
pub struct Shared {
    /// `None`: the server only sends weights.
    pub ingress: Option<Ingress>,
    /// `None`: the server has no weights.
    pub weight_outlet: Option<Arc<WeightOutlet>>,
    pub spec: TcpServerSpec,
    pub token: Token,
    /// `None`: the server made the token, which cannot be guessed.
    pub guesses: Option<Guesses>,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub sessions: Arc<Sessions>,
    pub staging: Arc<Staging>,
    /// Until when all connections stage their frames from the start, in nanoseconds of the monotonic clock; 0: they do not.
    pub late_until_ns: AtomicU64,
    pub counters: ServerCounters,
    pub stop: watch::Sender<bool>,
    pub window: u32,
    pub(super) unauthenticated: Mutex<VecDeque<(u64, oneshot::Sender<()>)>>,
    pub(super) next_admission: AtomicU64,
    pub(super) last_refusal: Mutex<Option<Refused>>,
}

/// A client that was not let in, or whose record was refused, as the learner may want to know.
#[derive(Debug, Clone)]
pub struct Refused {
    pub peer: String,
    pub code: Refusal,
    pub text: String,
    /// The client's content and schema, if the schema was the reason.
    pub schema: Option<(Content, Vec<u8>)>,
    pub at: Instant,
}

impl Shared {
    /// Notes that a frame did not arrive in time and had to leave claimed room.
    pub fn note_late(&self) {
        self.late_until_ns.store(monotonic_ns() + LATE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether that happened within the last second.
    pub fn was_late_lately(&self) -> bool {
        let until = self.late_until_ns.load(Ordering::Relaxed);
        if until == 0 {
            return false; // Nearly always; does not read the clock.
        }
        let late = monotonic_ns() < until;
        if !late {
            // A note of another thread may be lost here: the next late frame makes it again.
            self.late_until_ns.store(0, Ordering::Relaxed);
        }
        late
    }

    /// How many frames a client may have under way now: few while others wait for room.
    pub fn credit(&self) -> u32 {
        let others_wait = self.ingress.as_ref().is_some_and(|ingress| ingress.room_waiter().has_waiters());
        if others_wait { FIRST_CREDIT.min(self.window) } else { self.window }
    }

    /// The schema of this content; or, if the server has no such content, why the client is refused.
    pub fn expects(&self, content: Content) -> Result<&[u8], &'static str> {
        match (content, &self.ingress, &self.weight_outlet) {
            (Content::Weights, _, Some(weight_outlet)) => Ok(weight_outlet.schema()),
            (Content::Weights, _, None) => Err(NO_WEIGHTS),
            (Content::Forwarded, Some(ingress @ Ingress::Samples(_)), _)
            | (Content::ForwardedRecords, Some(ingress @ Ingress::Records(_)), _) => {
                Ok(&ingress.facts().schema)
            }
            (_, Some(ingress), _) if ingress.facts().content == content => Ok(&ingress.facts().schema),
            (_, Some(Ingress::Records(_)), _) => Err(ONLY_RECORDS),
            (_, Some(Ingress::Samples(_)), _) => Err(ONLY_SAMPLES),
            (_, None, _) => Err(ONLY_WEIGHTS),
        }
    }

    /// Whether the weights are shut down, so that their clients need not come back.
    pub fn has_no_more_weights(&self) -> bool {
        self.weight_outlet.as_ref().is_some_and(|outlet| outlet.is_over())
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
                self.note_refusal(peer, Refusal::Protocol, text, None);
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
                self.note_refusal(peer, *code, text, schema.clone());
            }
            End::Goodbye(GoodbyeReason::TooSlow, _) => add(&counters.cut_slow, 1),
            End::Goodbye(GoodbyeReason::Silent, _) => add(&counters.cut_silent, 1),
            End::Goodbye(..) => {}
        }
    }

    fn note_refusal(&self, peer: &str, code: Refusal, text: &str, schema: Option<(Content, Vec<u8>)>) {
        let (peer, text, at) = (peer.to_owned(), text.to_owned(), Instant::now());
        *lock(&self.last_refusal) = Some(Refused { peer, code, text, schema, at });
    }

    /// Returns when the server stops.
    pub fn stopped(&self) -> impl Future<Output = End> + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
            End::Goodbye(GoodbyeReason::Stopping, "the learner stops serving".to_owned())
        }
    }

    /// Admits a connection as unauthenticated, in place of the oldest such one if need be. `None`: all connections are
    /// authenticated, and there are as many as allowed.
    pub fn admit(self: &Arc<Self>) -> Option<Admission> {
        let mut unauthenticated = lock(&self.unauthenticated);
        if self.counters.connections.load(Ordering::Relaxed) >= self.spec.max_connections as u64 {
            unauthenticated.pop_front()?; // Its receiver notices.
        }
        add(&self.counters.connections, 1);
        let (sender, receiver) = oneshot::channel();
        let id = self.next_admission.fetch_add(1, Ordering::Relaxed);
        unauthenticated.push_back((id, sender));
        Some(Admission { server: self.clone(), id, evicted: receiver })
    }
}

/// The admission of one connection, which is unauthenticated at first.
#[derive(Debug)]
pub struct Admission {
    server: Arc<Shared>,
    id: u64,
    evicted: oneshot::Receiver<()>,
}

impl Admission {
    /// Returns when a new connection takes our place.
    pub async fn evicted(&mut self) -> End {
        let _ = (&mut self.evicted).await;
        End::Stranger
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
