//! Healthy holders: sessions that are renewed by plain calls, again and again, from one thread. What the
//! server takes away from them is what tests judge; what it merely fails to answer is tried again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Http;

/// Sessions named in one renewal call; keeps a call's body far below every limit.
const BATCH: usize = 1_000;

/// What a renewer has seen.
#[derive(Clone, Debug, Default)]
pub struct RenewerReport {
    /// Renewals that were acknowledged.
    pub renewed: u64,
    /// Calls without an answer, or with one that says to try again.
    pub unanswered: u64,
    /// Sessions that the server says have ended.
    pub lost: Vec<String>,
    /// The longest time between two acknowledged rounds.
    pub longest_gap: Duration,
}

/// A thread that renews sessions until it is stopped.
pub struct Renewer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<RenewerReport>,
}

impl Renewer {
    /// Renews all `sessions` every `every`, each round in as few calls as needed.
    pub fn start(address: SocketAddr, sessions: Vec<String>, every: Duration) -> Self {
        Self::start_at(&[address], sessions, every)
    }

    /// The same, at whichever of these nodes answers.
    pub fn start_at(addresses: &[SocketAddr], sessions: Vec<String>, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let addresses = addresses.to_vec();
        let thread = std::thread::spawn(move || beat(&addresses, sessions, every, &stopped));
        Self { stop, thread }
    }

    /// Stops renewing and tells what was seen.
    pub fn stop(self) -> RenewerReport {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the renewer does not panic")
    }
}

fn beat(
    addresses: &[SocketAddr],
    mut sessions: Vec<String>,
    every: Duration,
    stop: &AtomicBool,
) -> RenewerReport {
    let mut report = RenewerReport::default();
    // A call that hangs is given up after one interval and made again, as any client would.
    let within = every.max(Duration::from_millis(50));
    let mut callers = addresses.iter().cycle().map(|address| Http::new(*address).with_limit(within));
    let mut http = callers.next().expect("a node to ask");
    let mut number = 0;
    let mut acknowledged = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let round = Instant::now();
        number += 1;
        let mut whole = true;
        for batch in sessions.clone().chunks(BATCH) {
            match renew(&mut http, batch, number) {
                Some(ended) => {
                    report.renewed += (batch.len() - ended.len()) as u64;
                    sessions.retain(|session| !ended.contains(session));
                    report.lost.extend(ended);
                }
                None => {
                    report.unanswered += 1;
                    whole = false;
                    http = callers.next().expect("it goes round");
                }
            }
        }
        if whole {
            report.longest_gap = report.longest_gap.max(acknowledged.elapsed());
            acknowledged = Instant::now();
        }
        // Unanswered is tried again soon, not a whole interval later.
        let pause = if whole { every } else { every / 4 };
        std::thread::sleep(pause.saturating_sub(round.elapsed()));
    }
    report
}

/// One call; the sessions that have ended, or nothing if there was no answer to rely on.
fn renew(http: &mut Http, sessions: &[String], number: u64) -> Option<Vec<String>> {
    let renewals: Vec<Value> =
        sessions.iter().map(|session| json!({ "session": session, "number": number })).collect();
    let reply = http.call("POST", "/v1/sessions:renew", Some(&json!({ "renewals": renewals }))).ok()?;
    if reply.status != 200 {
        return None;
    }
    let body = reply.json();
    let answers = body["answers"].as_array()?;
    assert_eq!(answers.len(), sessions.len(), "every renewal is answered");
    let ended =
        sessions.iter().zip(answers).filter(|(_, answer)| answer["error"]["code"] == "unknown_session");
    Some(ended.map(|(session, _)| session.clone()).collect())
}
