//! Steady load on a cluster by callers who remember what they were promised: what was acknowledged must be there in
//! the end, whatever happened in between.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Http;

/// How long a call may take before another node is asked.
const CALL_WITHIN: Duration = Duration::from_secs(1);
/// A steady load, and not as much as two cores can bear: what is measured is the gap.
const EVERY: Duration = Duration::from_millis(10);
/// Outlives every test.
const TTL_MS: u64 = 3_600_000;

/// One grant that somebody was notified of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Promised {
    /// The token.
    pub token: u64,
    /// The resource.
    pub resource: String,
}

/// Callers at work until they are stopped.
pub struct Workers {
    stop: Arc<AtomicBool>,
    promised: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<(Vec<Promised>, Duration)>>,
}

impl Workers {
    /// Starts one caller for each list of addresses; it asks the next address of its list when one does not answer.
    pub fn start(callers: Vec<Vec<SocketAddr>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let promised = Arc::new(AtomicUsize::new(0));
        let threads = callers
            .into_iter()
            .enumerate()
            .map(|(name, addresses)| {
                let (stop, promised) = (stop.clone(), promised.clone());
                std::thread::spawn(move || work(&addresses, name, &stop, &promised))
            })
            .collect();
        Self { stop, promised, threads }
    }

    /// How many grants were acknowledged so far.
    pub fn promised(&self) -> usize {
        self.promised.load(Ordering::Relaxed)
    }

    /// Ends the work; everything that was acknowledged, by rising token, and the longest time that a caller went
    /// without an answer.
    #[track_caller]
    pub fn stop(self) -> (Vec<Promised>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut longest) = (BTreeSet::new(), Duration::ZERO);
        let mut count = 0;
        for thread in self.threads {
            let (promised, gap) = thread.join().expect("what was acknowledged is in order");
            count += promised.len();
            longest = longest.max(gap);
            all.extend(promised);
        }
        let tokens: BTreeSet<u64> = all.iter().map(|promised| promised.token).collect();
        assert_eq!(tokens.len(), count, "a token was issued twice");
        (all.into_iter().collect(), longest)
    }
}

/// Looks at everything that was promised, through this caller.
#[track_caller]
pub fn assert_kept(http: &mut Http, promised: &[Promised]) {
    for Promised { resource, token } in promised {
        let lease = http.get(&format!("/v1/leases/{resource}")).expect(200);
        assert_eq!((&lease["state"], lease["token"].as_u64()), (&json!("held"), Some(*token)), "{lease}");
    }
}

/// Acquires one resource after the other, at whichever node answers, and remembers what was acknowledged.
fn work(
    addresses: &[SocketAddr],
    name: usize,
    stop: &AtomicBool,
    count: &AtomicUsize,
) -> (Vec<Promised>, Duration) {
    let mut callers: Vec<Http> =
        addresses.iter().map(|address| Http::new(*address).with_limit(CALL_WITHIN)).collect();
    let mut promised: Vec<Promised> = Vec::new();
    let (mut caller, mut session) = (0, None);
    let (mut answered, mut longest) = (Instant::now(), Duration::ZERO);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let resource = format!("load/{name}/{number}");
        match take(&mut callers[caller], &mut session, name, &resource) {
            Some(token) => {
                let before = promised.last().map_or(0, |promised| promised.token);
                assert!(token > before, "{resource}: token {token} after {before}");
                promised.push(Promised { token, resource });
                count.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(answered.elapsed());
                answered = Instant::now();
            }
            None => caller = (caller + 1) % callers.len(),
        }
        std::thread::sleep(EVERY);
    }
    (promised, longest)
}

fn take(http: &mut Http, session: &mut Option<Value>, name: usize, resource: &str) -> Option<u64> {
    let mut post = |path: &str, body: Value| {
        let reply = http.call("POST", path, Some(&body)).ok()?;
        (reply.status == 200).then(|| reply.json())
    };
    if session.is_none() {
        let opened = post("/v1/sessions", json!({"holder": format!("worker-{name}"), "ttl_ms": TTL_MS}))?;
        *session = Some(opened["session"].clone());
    }
    let grant = post(&format!("/v1/leases/{resource}:acquire"), json!({ "session": session }))?;
    Some(grant["token"].as_u64().expect("a grant has a token"))
}
