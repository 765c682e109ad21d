//! The process at the other end of a connection, and whether it is still alive.
//!
//! A process is watched through a pidfd that the kernel provides for the connection itself (SO_PEERPIDFD,
//! since Linux 6.5): it means the process that connected and can never come to mean another one. Where the
//! kernel has none, no process is watched and no session is ended early. The same holds unless the opener
//! declared the session as its own alone. A closed connection proves nothing and ends nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use hyper::header::HeaderValue;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tenure_client::proto::sessions_client::SessionsClient;
use tenure_client::{Call, Endpoints, Repeat, Transport};
use tenure_core::{Caller, EndReason, SessionId, SessionNumber};
use tenure_wire::grpc;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::counts::Counts;
use super::presenting;

/// How long to go on telling the store of a death. Past the longest usual TTL the session has ended by
/// itself.
const TELL_WITHIN: Duration = Duration::from_secs(60);
/// How long one attempt may take.
const TELL_ATTEMPT_WITHIN: Duration = Duration::from_secs(2);
/// Sessions remembered of one process. Closed ones are not distinguished, so a process that opens and closes
/// without end makes the agent forget its oldest: those have no early end.
const SESSIONS_PER_PROCESS_MAX: usize = 100_000;
/// The stack of a thread that waits for one process.
const WATCH_STACK_BYTES: usize = 64 << 10;
/// How long a look at a handle waits.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Deaths in one report.
const NOTIFIED_AT_ONCE: usize = 64;

pub struct Processes {
    transport: Transport,
    counts: Arc<Counts>,
    known: Mutex<BTreeMap<i32, Weak<Process>>>,
}

/// One process of this host.
pub struct Process {
    pid: i32,
    pidfd: Arc<OwnedFd>,
    inside: Mutex<Inside>,
}

struct Inside {
    /// Somebody waits for its death.
    watched: bool,
    /// Its sessions; gone once it is dead.
    sessions: Option<BTreeMap<SessionNumber, Opened>>,
}

/// A session of a process, and what the process presented when it opened it: only that may close it.
#[derive(Clone)]
struct Opened {
    session: SessionId,
    presented: Option<HeaderValue>,
}

impl Processes {
    pub fn new(endpoints: &Endpoints, counts: Arc<Counts>) -> Processes {
        Processes { transport: Transport::new(endpoints), counts, known: Mutex::default() }
    }

    /// The process that made this connection, if it can be watched.
    pub fn at_the_other_end(&self, connection: &UnixStream) -> Option<Arc<Process>> {
        // Without a number here, such as in another container: then there is no early end.
        let pid = connection.peer_cred().ok()?.pid().filter(|pid| *pid > 0)?;
        let process = Arc::new(Process::new(pid, getsockopt(connection, PeerPidfd).ok()?));
        if !process.is_alive() {
            // Its number may be another's by now; what it has still opened is reported immediately.
            return Some(process);
        }
        // Two that live under one number are one process.
        let mut known = lock(&self.known);
        known.retain(|_, process| process.strong_count() > 0);
        if let Some(before) = known.get(&pid).and_then(Weak::upgrade).filter(|before| before.is_alive()) {
            return Some(before);
        }
        known.insert(pid, Arc::downgrade(&process));
        Some(process)
    }

    /// A session belongs to this process and ends with it.
    pub fn opened(
        self: &Arc<Self>,
        process: &Arc<Process>,
        session: SessionId,
        presented: Option<HeaderValue>,
    ) {
        let opened = Opened { session, presented };
        let mut inside = lock(&process.inside);
        let alive = match &mut inside.sessions {
            Some(sessions) => {
                sessions.insert(session.number, opened.clone());
                if sessions.len() > SESSIONS_PER_PROCESS_MAX {
                    sessions.pop_first();
                }
                true
            }
            None => false,
        };
        let watched = std::mem::replace(&mut inside.watched, true);
        drop(inside);
        let (processes, process) = (self.clone(), process.clone());
        if !alive {
            // It died while its open was on the way.
            tokio::spawn(async move { processes.tell_of_death(vec![opened]).await });
        } else if !watched {
            tokio::spawn(async move {
                if died(process.pidfd.clone()).await {
                    let sessions = lock(&process.inside).sessions.take().unwrap_or_default();
                    processes.tell_of_death(sessions.into_values().collect()).await;
                }
            });
        }
    }

    async fn tell_of_death(&self, sessions: Vec<Opened>) {
        let tell = |Opened { session, presented }: Opened| async move {
            let call = Call {
                // Asks for a state: that the session has ended.
                repeat: Repeat::Harmless,
                within: TELL_WITHIN,
                attempt_within: Some(TELL_ATTEMPT_WITHIN),
                persistent: true,
            };
            let request = grpc::close_request(&Caller::unnumbered(session), EndReason::Died);
            let send = |channel, _| {
                let request = presenting(request.clone(), presented.as_ref());
                async move { SessionsClient::new(channel).close(request).await }
            };
            // Refused if it was closed before: then all is well. Otherwise it ends by its TTL.
            if self.transport.call(call, send).await.is_ok() {
                self.counts.died();
            }
        };
        stream::iter(sessions).for_each_concurrent(NOTIFIED_AT_ONCE, tell).await;
    }
}

impl Process {
    fn new(pid: i32, pidfd: OwnedFd) -> Process {
        let inside = Inside { watched: false, sessions: Some(BTreeMap::new()) };
        Process { pid, pidfd: Arc::new(pidfd), inside: Mutex::new(inside) }
    }

    /// Asked of the handle and not of what was noticed so far. A number is another's only after its process
    /// is dead, and the handle says so from that moment on: so whoever connects under a number that is known
    /// is never taken for the dead one.
    fn is_alive(&self) -> bool {
        poll(&mut [PollFd::new(&*self.pidfd, PollFlags::IN)], Some(&AT_ONCE)) == Ok(0)
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// Waits until the process is dead: all of its threads, not only the first. False if that cannot be seen.
///
/// On a thread of its own that does nothing else, with hardly a stack: a host has few holders, and waiting
/// this way needs no unsafe code.
async fn died(pidfd: Arc<OwnedFd>) -> bool {
    let (tell, notified) = oneshot::channel();
    let watching = std::thread::Builder::new().name("tenure-pidfd".to_owned()).stack_size(WATCH_STACK_BYTES);
    let started = watching.spawn(move || {
        let mut watched = [PollFd::new(&*pidfd, PollFlags::IN)];
        loop {
            match poll(&mut watched, None) {
                Ok(_) => {
                    let _ = tell.send(());
                    return;
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    });
    started.is_ok() && notified.await.is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every change under these locks is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_connected_is_known_by_the_kernels_own_record() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
        let endpoints = "127.0.0.1:1".parse().expect("an address");
        let processes = Processes::new(&endpoints, Arc::default());
        let process = processes.at_the_other_end(&ours).expect("this kernel tells who connected");
        assert_eq!(process.pid.cast_unsigned(), std::process::id());
        assert!(process.is_alive());
        let again = processes.at_the_other_end(&ours).expect("it is still there");
        assert!(Arc::ptr_eq(&process, &again), "one process, watched once");
    }

    #[test]
    fn a_dead_process_is_known_by_its_handle_before_anybody_has_noticed() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep is everywhere");
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::NONBLOCK)
            .expect("a child can be watched");
        let process = Process::new(pid.as_raw_nonzero().get(), pidfd);
        assert!(process.is_alive());
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
        // From now on its number may be another's.
        assert!(!process.is_alive());
        assert!(lock(&process.inside).sessions.is_some(), "nobody has noticed");
    }
}
