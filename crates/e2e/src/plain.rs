//! A caller without the client library: plain HTTP and unary gRPC, with numbers, with nonces and with neither. It gives up
//! after a fraction of a second and repeats what can be repeated at another node, as `docs/api.md` advises.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::proto::{self, acquire_request, wait};
use tenure_client::{Channel, Code, Effect, random_nonce};

use crate::{CallFailed, Dice, Http};

/// How often a call is repeated before its outcome is left unknown.
const ATTEMPTS_MAX: u64 = 40;
/// How long an acquire waits for its turn.
const WAIT_MS: u64 = 1_500;
/// How long one request stays open while its acquire is queued.
const POLL_MS: u64 = 400;

/// What became of an acquire, with every refusal taken at its word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Granted under this token, to this session.
    Granted(u64, String),
    /// Refused: it is held.
    Held,
    /// It certainly did nothing, and nothing will come of it.
    Failed,
    /// It may have been granted, or be granted yet.
    Unknown,
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// It was this caller's until now.
    Released,
    /// Nothing was left to release, and no earlier request of this caller explains that.
    Gone,
    /// Over, but nobody can say since when.
    Over,
    /// No answer.
    Unknown,
}

/// What one request came to.
enum PlainReply {
    Granted {
        token: u64,
        session: String,
    },
    Queued,
    Refused {
        code: Option<Code>,
        effect: Effect,
    },
    /// No answer: it may have been applied.
    Lost,
}

/// What distinguishes an acquire from others.
#[derive(Clone, Debug)]
pub enum By {
    /// The session and the command's number within it.
    Number(String, u64),
    /// The nonce of an acquire that opens its own session.
    Nonce([u8; 16]),
    /// Nothing: nobody can repeat it.
    Plain,
}

/// One caller.
pub struct PlainCaller {
    name: String,
    nodes: Vec<SocketAddr>,
    ttl: Duration,
    dice: Dice,
    /// Its own session and the last number in it.
    session: Option<(String, u64)>,
}

impl PlainCaller {
    /// A caller of these nodes.
    pub fn new(name: String, nodes: Vec<SocketAddr>, ttl: Duration, dice: Dice) -> PlainCaller {
        PlainCaller { name, nodes, ttl, dice, session: None }
    }

    /// What distinguishes the next acquire from others; `None` if the session that it needs cannot be had now. `now` reads the
    /// caller's clock.
    pub fn draw(&mut self, now: impl Fn() -> u64) -> Option<By> {
        match self.dice.between(0, 5) {
            0 | 1 => self.numbered(now),
            2 | 3 => Some(By::Nonce(random_nonce())),
            _ => Some(By::Plain),
        }
    }

    /// Draws a number from a range.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        self.dice.between(from, to)
    }

    fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis() as u64
    }

    /// The next number of this caller's own session, which is opened if there is none and renewed if there is.
    fn numbered(&mut self, now: impl Fn() -> u64) -> Option<By> {
        if let Some((id, _)) = self.session.clone()
            && self.renew(&id, now).is_none()
        {
            self.session = None;
        }
        if self.session.is_none() {
            let nonce = hex(&random_nonce());
            let body = json!({"holder": self.name.clone(), "ttl_ms": self.ttl_ms(), "nonce": nonce});
            for _ in 0..ATTEMPTS_MAX {
                let Ok(reply) = self.http().call("POST", "/v1/sessions", Some(&body)) else { continue };
                if reply.status == 200 {
                    self.session = Some((reply.json()["session"].as_str()?.to_owned(), 1));
                    break;
                }
            }
        }
        let (id, next) = self.session.as_mut()?;
        *next += 1;
        Some(By::Number(id.clone(), *next))
    }

    /// Asks until it is answered for good. A refusal that says that nothing was applied is taken at its word: of this
    /// request, and of all before it if none of those went without an answer.
    pub async fn acquire(&mut self, resource: &str, by: &By) -> Acquired {
        let attempts = if matches!(by, By::Plain) { 1 } else { ATTEMPTS_MAX };
        let mut lost = false;
        for attempt in 1..=attempts {
            let plain_reply = if self.dice.once_in(3) {
                self.ask_grpc(resource, by, attempt).await
            } else {
                self.ask_http(resource, by, attempt)
            };
            match plain_reply {
                PlainReply::Granted { token, session } => return Acquired::Granted(token, session),
                PlainReply::Queued | PlainReply::Lost => lost = true,
                PlainReply::Refused { code: Some(Code::Held), .. } => return Acquired::Held,
                PlainReply::Refused { effect: Effect::NotApplied, code } => {
                    let over = !matches!(code, Some(Code::NoLeader | Code::Overloaded | Code::ShuttingDown));
                    if over || attempt == attempts {
                        return if lost { Acquired::Unknown } else { Acquired::Failed };
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                PlainReply::Refused { code: Some(Code::UnknownOutcome), .. } => lost = true,
                // It may have been granted and have ended since: unknown.
                PlainReply::Refused { .. } => return Acquired::Unknown,
            }
        }
        Acquired::Unknown
    }

    fn ask_http(&mut self, resource: &str, by: &By, attempt: u64) -> PlainReply {
        let mut body = json!({"wait_ms": WAIT_MS});
        match by {
            By::Number(session, number) => {
                body["session"] = json!(session);
                body["number"] = json!(number);
                body["lowest_awaited"] = json!(number);
                body["poll_ms"] = json!(POLL_MS);
            }
            By::Nonce(_) | By::Plain => {
                body["holder"] = json!(self.name.clone());
                body["ttl_ms"] = json!(self.ttl_ms());
                body["number"] = json!(attempt);
            }
        }
        if let By::Nonce(nonce) = by {
            body["nonce"] = json!(hex(nonce));
        }
        match self.http().call("POST", &format!("/v1/leases/{resource}:acquire"), Some(&body)) {
            Ok(reply) => plain_reply(reply.status, &reply.json()),
            Err(CallFailed::NotSent(_)) => {
                PlainReply::Refused { code: Some(Code::NoLeader), effect: Effect::NotApplied }
            }
            Err(CallFailed::Unknown(_)) => PlainReply::Lost,
        }
    }

    async fn ask_grpc(&mut self, resource: &str, by: &By, attempt: u64) -> PlainReply {
        let (node, within) = (self.node(), self.patience());
        let Ok(endpoint) = Channel::from_shared(format!("http://{node}")) else { return PlainReply::Lost };
        let Ok(Ok(channel)) = tokio::time::timeout(within, endpoint.connect()).await else {
            return PlainReply::Refused { code: Some(Code::NoLeader), effect: Effect::NotApplied };
        };
        let opening = |nonce: Vec<u8>| {
            acquire_request::By::Opening(proto::Opening {
                holder: self.name.clone(),
                ttl_ms: self.ttl_ms(),
                nonce,
                number: attempt,
            })
        };
        let by = match by {
            By::Number(session, number) => acquire_request::By::Caller(proto::Caller {
                session: session.clone(),
                number: Some(*number),
                lowest_awaited: *number,
            }),
            By::Nonce(nonce) => opening(nonce.to_vec()),
            By::Plain => opening(Vec::new()),
        };
        let request = proto::AcquireRequest {
            by: Some(by),
            resources: vec![resource.to_owned()],
            wait: Some(proto::Wait { wait: Some(wait::Wait::AtMostMs(WAIT_MS)) }),
            ..proto::AcquireRequest::default()
        };
        let mut leases = LeasesClient::new(channel);
        match tokio::time::timeout(within, leases.acquire(request)).await {
            Err(_) => PlainReply::Lost,
            Ok(Ok(answer)) => match answer.into_inner().grants.into_iter().next() {
                Some(grant) => PlainReply::Granted { token: grant.token, session: grant.session },
                None => PlainReply::Queued,
            },
            Ok(Err(status)) => {
                let word = status.metadata().get("tenure-code").and_then(|word| word.to_str().ok());
                match word.and_then(|word| word.parse::<Code>().ok()) {
                    Some(code) => PlainReply::Refused { code: Some(code), effect: code.effect() },
                    None => PlainReply::Lost,
                }
            }
        }
    }

    /// Renews, and says until when the lease may be relied on, in microseconds of `now`: counted from before the
    /// request was sent.
    pub fn renew(&mut self, session: &str, now: impl Fn() -> u64) -> Option<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let sent = now();
            // By body: nodes of release 0.1.0 know no header for it.
            let body = json!({"renewals": [{"session": session}]});
            match self.http().call("POST", "/v1/sessions:renew", Some(&body)) {
                Ok(reply) if reply.status == 200 => {
                    if reply.json()["answers"][0]["error"]["code"] == "unknown_session" {
                        return None;
                    }
                    let ttl = self.ttl.as_micros() as u64;
                    return Some(sent + ttl - ttl / 2_000 - 100_000);
                }
                _ => {}
            }
        }
        None
    }

    /// Gives the lease back, under a number if it was acquired under one.
    pub fn release(&mut self, resource: &str, token: u64, session: &str, by: &By) -> GivenBack {
        let mut body = json!({"session": session, "token": token});
        if let (By::Number(..), Some((_, last))) = (by, self.session.as_mut()) {
            *last += 1;
            body["number"] = json!(last);
            body["lowest_awaited"] = json!(last);
        }
        let mut lost = false;
        for _ in 0..ATTEMPTS_MAX {
            let path = format!("/v1/leases/{resource}:release");
            let Ok(reply) = self.http().call("POST", &path, Some(&body)) else {
                lost = true;
                continue;
            };
            // A number is answered as it was the first time; without one, an earlier request may have released it.
            let first = body["number"].is_u64() || !lost;
            return match reply.status {
                200 if reply.json()["released"] == true => GivenBack::Released,
                200 if first => GivenBack::Gone,
                404 if !lost => GivenBack::Gone,
                200 | 404 => GivenBack::Over,
                504 => {
                    lost = true;
                    continue;
                }
                _ => continue,
            };
        }
        GivenBack::Unknown
    }

    fn node(&mut self) -> SocketAddr {
        self.nodes[self.dice.between(0, self.nodes.len() as u64) as usize]
    }

    fn patience(&mut self) -> Duration {
        Duration::from_millis(self.dice.between(50, 300))
    }

    /// A caller of some node that gives up soon, over a connection of its own.
    fn http(&mut self) -> Http {
        let (node, patience) = (self.node(), self.patience());
        Http::new(node).with_limit(patience)
    }
}

fn plain_reply(status: u16, body: &Value) -> PlainReply {
    match status {
        200 => PlainReply::Granted {
            token: body["token"].as_u64().unwrap_or_default(),
            session: body["session"].as_str().unwrap_or_default().to_owned(),
        },
        202 => PlainReply::Queued,
        _ => {
            let error = &body["error"];
            let effect = match error["effect"].as_str() {
                Some("not_applied") => Effect::NotApplied,
                Some("applied") => Effect::Applied,
                _ => Effect::Unknown,
            };
            PlainReply::Refused { code: error["code"].as_str().and_then(|word| word.parse().ok()), effect }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
