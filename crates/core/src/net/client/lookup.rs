//! Looks up a host name on a thread of its own, because a call of the system's resolver cannot be cancelled.
//!
//! A [`Resolver`] has at most one call under way. An attempt whose time is over leaves it running, and the next attempt waits for
//! it: a name server that does not answer costs one thread per client. When the client is closed first, the thread ends with
//! the resolver's own timeout (`timeout` and `attempts` in resolv.conf). An IP address needs no lookup.

use super::disconnect::Disconnect;
use super::link::wait_ready;
use crate::sys::thread::{lock, spawn};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

type Answer = io::Result<Vec<SocketAddr>>;

/// The learner's host and port, and the lookup that is under way.
#[derive(Debug)]
pub struct Resolver {
    host: String,
    port: u16,
    asked: Mutex<Option<Receiver<Answer>>>,
}

impl Resolver {
    pub fn new(host: &str, port: u16) -> Resolver {
        Resolver { host: host.to_owned(), port, asked: Mutex::new(None) }
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Waits for the addresses, until `deadline`, or until `check_wanted` fails after a caller has written to `wakeup`.
    pub fn resolve(
        &self,
        wakeup: &Arc<OwnedFd>,
        deadline: Instant,
        check_wanted: impl Fn() -> Result<(), Disconnect>,
    ) -> Result<Vec<SocketAddr>, Disconnect> {
        let host = &self.host;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let mut asked = lock(&self.asked);
        let answer = match asked.take() {
            Some(answer) => answer,
            None => self.ask(wakeup.clone()).map_err(|error| Disconnect::Broken(error.to_string()))?,
        };
        loop {
            match answer.try_recv() {
                Ok(Ok(found)) if found.is_empty() => {
                    return Err(Disconnect::Broken(format!("'{host}' has no address")));
                }
                Ok(found) => return Ok(found?),
                Err(TryRecvError::Disconnected) => {
                    return Err(Disconnect::Broken(format!("the thread that looked up '{host}' failed")));
                }
                Err(TryRecvError::Empty) => {}
            }
            check_wanted()?;
            if Instant::now() >= deadline {
                *asked = Some(answer);
                return Err(Disconnect::Late(format!("the name '{host}' was not resolved in time")));
            }
            wait_ready(None, wakeup, false, deadline)?;
        }
    }

    fn ask(&self, wakeup: Arc<OwnedFd>) -> crate::error::Result<Receiver<Answer>> {
        let (tell, answer) = channel();
        let (host, port) = (self.host.clone(), self.port);
        spawn("rollway-lookup", move || {
            let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            let _ = tell.send(found); // Fails when the client is closed.
            let _ = rustix::io::write(&*wakeup, &1u64.to_ne_bytes());
        })?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::net::wire::frame::PREAMBLE_BYTES;
    use crate::net::{TcpClient, TcpClientSpec};
    use crate::ring::Deadline;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
    use std::ffi::{CStr, c_char, c_int};
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, mpsc};
    use std::time::Duration;

    /// Hosts whose name servers have begun to answer.
    static ANSWERING: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ANSWERS: Condvar = Condvar::new();
    static ASKED_TWICE: AtomicUsize = AtomicUsize::new(0);

    /// In place of the system's. It says nothing of a host that is not among [`ANSWERING`], for long; then that it has the
    /// addresses 127.0.0.2 and 127.0.0.1, in that order.
    ///
    /// # Safety
    /// As for the system's.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn getaddrinfo(
        node: *const c_char,
        _service: *const c_char,
        _hints: *const libc::addrinfo,
        found: *mut *mut libc::addrinfo,
    ) -> c_int {
        // SAFETY: the caller gives a name.
        let host = unsafe { CStr::from_ptr(node) }.to_str().unwrap().to_owned();
        if host == "asked.twice" {
            ASKED_TWICE.fetch_add(1, Ordering::Relaxed);
        }
        let answering = ANSWERING.lock().unwrap();
        let (answering, _) = ANSWERS
            .wait_timeout_while(answering, Duration::from_secs(30), |hosts| !hosts.contains(&host))
            .unwrap();
        drop(answering);
        let mut next = std::ptr::null_mut();
        for last in [1, 2] {
            let address = Box::new(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, last]) },
                sin_zero: [0; 8],
            });
            next = Box::into_raw(Box::new(libc::addrinfo {
                ai_flags: 0,
                ai_family: libc::AF_INET,
                ai_socktype: libc::SOCK_STREAM,
                ai_protocol: 0,
                ai_addrlen: size_of::<libc::sockaddr_in>() as u32,
                ai_addr: Box::into_raw(address).cast(),
                ai_canonname: std::ptr::null_mut(),
                ai_next: next,
            }));
        }
        // SAFETY: the caller gives a place.
        unsafe { *found = next };
        0
    }

    /// Tests end: what they were told is not freed.
    ///
    /// # Safety
    /// None is needed.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn freeaddrinfo(_found: *mut libc::addrinfo) {}

    fn answer(host: &str) {
        ANSWERING.lock().unwrap().push(host.to_owned());
        ANSWERS.notify_all();
    }

    fn wakeup() -> Arc<OwnedFd> {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        Arc::new(rustix::event::eventfd(0, flags).unwrap())
    }

    fn spec(host: &str, port: u16, connect_timeout: Duration) -> TcpClientSpec {
        TcpClientSpec { host: host.to_owned(), port, connect_timeout, ..TcpClientSpec::default() }
    }

    #[test]
    fn a_name_server_that_does_not_answer_does_not_keep_a_client_beyond_its_time() {
        let client =
            TcpClient::start(spec("mute.server", 1, Duration::from_millis(50)), b"{}", &[4]).unwrap();
        match client.ready(Deadline::Never) {
            Err(Error::Unreachable { why, .. }) => {
                assert!(why.contains("'mute.server' was not resolved"), "{why}")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_whose_learner_is_looked_up_can_be_closed() {
        let (over, waits) = mpsc::channel();
        std::thread::spawn(move || {
            let client =
                TcpClient::start(spec("slow.server", 1, Duration::from_secs(3600)), b"{}", &[4]).unwrap();
            drop(client);
            let _ = over.send(());
        });
        waits.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn the_next_attempt_goes_on_with_the_question_of_the_last() {
        let (resolver, wakeup) = (Resolver::new("asked.twice", 7), wakeup());
        for _ in 0..2 {
            let late = resolver.resolve(&wakeup, Instant::now() + Duration::from_millis(20), || Ok(()));
            assert!(matches!(late, Err(Disconnect::Late(why)) if why.contains("not resolved in time")));
        }
        answer("asked.twice");
        let found = resolver.resolve(&wakeup, Instant::now() + Duration::from_secs(20), || Ok(())).unwrap();
        assert_eq!(found, ["127.0.0.2:7".parse().unwrap(), "127.0.0.1:7".parse().unwrap()]);
        assert_eq!(ASKED_TWICE.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_address_is_asked_of_nobody() {
        let found = Resolver::new("::1", 7).resolve(&wakeup(), Instant::now(), || Ok(())).unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
    }
    #[test]
    fn an_address_from_which_nothing_comes_leaves_time_for_the_next() {
        answer("two.addresses");
        let learner = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = learner.local_addr().unwrap().port();
        let mute: SocketAddr = format!("127.0.0.2:{port}").parse().unwrap();
        let socket =
            || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let full = socket();
        bind(&full, &mute).unwrap();
        listen(&full, 0).unwrap();
        let fills: Vec<_> = (0..4).map(|_| socket()).collect(); // From now on nobody is let in there.
        for one in &fills {
            let _ = connect(one, &mute);
        }
        let client =
            TcpClient::start(spec("two.addresses", port, Duration::from_secs(1)), b"{}", &[4]).unwrap();
        assert!(matches!(client.ready(Deadline::Never), Err(Error::Unreachable { .. })));
        let (mut called, _) = learner.accept().unwrap();
        called.read_exact(&mut [0; PREAMBLE_BYTES]).unwrap();
    }
}
