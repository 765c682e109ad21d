//! The roles of a demo's processes. Code that stands for a careless program is careless on purpose; the
//! protected roles use the client library as any program would.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_client::{CallError, Client, Endpoints, Lease, Session};
use tenure_core::Revision;
use tokio::sync::mpsc;

use crate::http::Http;
use crate::{moment, redlock};

/// What a role process does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// Holds a lease and writes one register on command: `check`, `write VALUE`.
    Writer { endpoints: String, holder: String, ttl_ms: u64, resource: String, key: String, fenced: bool },
    /// Sends the rows of a batch.
    Batch(Batch),
    /// Leads, the way most programs do: polls for the lease, then warms up, and dies with SIGTERM.
    NaiveLeader { endpoints: String, holder: String, ttl_ms: u64, poll_ms: u64, warm_up_ms: u64 },
    /// Leads: warms up while it waits in the queue, and gives the lease back on SIGTERM.
    Leader { endpoints: String, holder: String, ttl_ms: u64, warm_up_ms: u64 },
    /// Acts all the time; with `careful` only under a permit, else until somebody tells it to stop.
    Acting { endpoints: String, holder: String, resource: String, ttl_ms: u64, careful: bool },
    /// Takes a plain lock (a register that must not exist yet), asking again and again, and acts until it is
    /// ended.
    Lock { endpoints: String, holder: String, key: String },
    /// Holds a Redlock and writes on command: `check`, `write VALUE`.
    Redlock { instances: Vec<SocketAddr>, storage: SocketAddr, name: String, ttl_ms: u64 },
}

/// A batch of payments.
#[derive(Debug, Serialize, Deserialize)]
pub struct Batch {
    pub endpoints: String,
    pub node: SocketAddr,
    pub holder: String,
    pub ttl_ms: u64,
    pub rows: usize,
    /// Says so and waits for a line before it sends this row.
    pub waits_at: Option<usize>,
    pub fenced: bool,
}

/// The resource of all demos, except where a demo names another.
pub const RESOURCE: &str = "settlement/cron";
/// Where a batch keeps how far it has come.
pub const CURSOR: &str = "settlement/cursor";
/// Under which keys payments are booked: one per row and sender.
pub const PAYMENTS: &str = "payments/";

/// How often a role acts.
const BEAT: Duration = Duration::from_millis(20);
/// How often a role polls for a lock that another one holds.
const POLL: Duration = Duration::from_millis(100);

/// Plays a part to its end: the last line on stdin, or a signal.
pub fn run_role(role: &str) -> Result<(), String> {
    let role: Role = serde_json::from_str(role).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let outcome = runtime.block_on(act(role));
    if let Err(why) = &outcome {
        say("failed", json!({"why": why}));
    }
    outcome
}

async fn act(role: Role) -> Result<(), String> {
    match role {
        Role::Writer { endpoints, holder, ttl_ms, resource, key, fenced } => {
            let client = connect(&endpoints)?;
            let session = open(&client, &holder, ttl_ms).await?;
            let lease = acquired(&session, &resource).await?;
            writer(&client, &lease, &key, fenced).await
        }
        Role::Batch(batch) => send_batch(batch).await,
        Role::NaiveLeader { endpoints, holder, ttl_ms, poll_ms, warm_up_ms } => {
            let client = connect(&endpoints)?;
            let session = open(&client, &holder, ttl_ms).await?;
            let lease = loop {
                match session.acquire("stream/leader").await {
                    Ok(lease) => break lease,
                    Err(error) if error.is_held() => tokio::time::sleep(Duration::from_millis(poll_ms)).await,
                    Err(error) => return Err(error.to_string()),
                }
            };
            say("granted", json!({}));
            tokio::time::sleep(Duration::from_millis(warm_up_ms)).await;
            loop {
                say("served", json!({"left_ms": millis(lease.remaining())}));
                tokio::time::sleep(BEAT).await;
            }
        }
        Role::Leader { endpoints, holder, ttl_ms, warm_up_ms } => {
            let client = connect(&endpoints)?;
            let session = open(&client, &holder, ttl_ms).await?;
            let kind = tokio::signal::unix::SignalKind::terminate();
            let mut terminated = tokio::signal::unix::signal(kind).map_err(|error| error.to_string())?;
            let warm_up = async {
                tokio::time::sleep(Duration::from_millis(warm_up_ms)).await;
                say("warm", json!({}));
            };
            let queued = async { session.acquire("stream/leader").wait().await };
            let (lease, ()) = tokio::join!(queued, warm_up);
            let lease = lease.map_err(|error| error.to_string())?;
            say("granted", json!({}));
            loop {
                let permit = lease.permit().map_err(|error| error.to_string())?;
                say("served", json!({"left_ms": millis(permit.time_left())}));
                drop(permit);
                tokio::select! {
                    biased;
                    _ = terminated.recv() => break,
                    () = tokio::time::sleep(BEAT) => {}
                }
            }
            lease.release().await.map_err(|error| error.to_string())?;
            say("released", json!({}));
            Ok(())
        }
        Role::Acting { endpoints, holder, resource, ttl_ms, careful } => {
            acting(&endpoints, &holder, &resource, ttl_ms, careful).await
        }
        Role::Lock { endpoints, holder, key } => lock(&endpoints, &holder, &key).await,
        Role::Redlock { instances, storage, name, ttl_ms } => {
            redlock::run_role(&instances, storage, &name, Duration::from_millis(ttl_ms))
                .map_err(|error| error.to_string())
        }
    }
}

/// Takes a permit on `check`, and writes under it on `write VALUE`, however long after.
async fn writer(client: &Client, lease: &Lease, key: &str, fenced: bool) -> Result<(), String> {
    let mut lines = lines();
    let mut permit = None;
    while let Some(line) = lines.recv().await {
        match line.split_once(' ').unwrap_or((line.as_str(), "")) {
            ("check", _) => {
                let taken = lease.permit().map_err(|error| error.to_string())?;
                say("checked", json!({"left_ms": millis(taken.time_left())}));
                permit = Some(taken);
            }
            ("write", value) => {
                let permit = permit.as_ref().ok_or("`write` came before `check`")?;
                let registers = client.registers();
                let written = match fenced {
                    // Checked, then sent, and whatever happened in between: nobody but the store can tell.
                    true => registers.unchecked(permit.scope().clone(), permit.token()).put(key, value).await,
                    false => registers.put(key, value).await,
                };
                check_written(written.map(|_| ()))?;
            }
            (other, _) => return Err(format!("unknown command {other}")),
        }
    }
    Ok(())
}

/// Says how a write ended; a refusal is an answer and no failure.
fn check_written(written: Result<(), CallError>) -> Result<(), String> {
    match written {
        Ok(()) => say("wrote", json!({})),
        Err(CallError::Refused(refused)) => say(
            "refused",
            json!({"code": refused.code.as_str(), "presented": refused.about.presented, "seen": refused.about.seen}),
        ),
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
}

/// Sends row after row. It looks at its lease once, at the beginning, and goes on whatever it is told: the
/// fence has to bear even that.
async fn send_batch(batch: Batch) -> Result<(), String> {
    let client = connect(&batch.endpoints)?;
    let session = open(&client, &batch.holder, batch.ttl_ms).await?;
    let lease = acquired(&session, RESOURCE).await?;
    let permit = lease.permit().map_err(|error| error.to_string())?;
    let token = permit.token().get();
    let mut http = Http::new(batch.node);
    // The registers know the live token, so with the grant nothing older can land any more: the cursor may be
    // read.
    let first = if batch.fenced { cursor(&mut http)? } else { 0 };
    say("begins", json!({"row": first, "token": token}));
    let mut lines = lines();
    let (mut sent, mut refused) = (0, 0);
    for row in first..batch.rows {
        if batch.waits_at == Some(row) {
            say("about_to_send", json!({"row": row}));
            lines.recv().await;
        }
        let payment =
            json!({"key": format!("{PAYMENTS}{row:03}/{}", batch.holder), "value": token.to_string()});
        let write = if batch.fenced {
            let cursor = json!({"key": CURSOR, "value": (row + 1).to_string()});
            json!({"then": [put(payment, token), put(cursor, token)]})
        } else {
            json!({"then": [{"put": payment}]})
        };
        let (status, _) =
            http.call("POST", "/v1/registers:write", Some(&write)).map_err(|error| error.to_string())?;
        match status {
            200 => sent += 1,
            412 => refused += 1,
            other => return Err(format!("a payment was answered with {other}")),
        }
    }
    say("done", json!({"sent": sent, "refused": refused}));
    lines.recv().await;
    Ok(())
}

/// A put under the lease's token.
fn put(mut register: Value, token: u64) -> Value {
    register["resource"] = json!(RESOURCE);
    register["token"] = json!(token);
    json!({"put": register})
}

fn cursor(http: &mut Http) -> Result<usize, String> {
    let (status, text) =
        http.call("GET", &format!("/v1/registers/{CURSOR}"), None).map_err(|error| error.to_string())?;
    if status == 404 {
        return Ok(0);
    }
    let register: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    register["value"]
        .as_str()
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("no cursor: {text}"))
}

async fn lock(endpoints: &str, holder: &str, key: &str) -> Result<(), String> {
    let registers = connect(endpoints)?.registers();
    let absent = Revision::new(0);
    let taken = || async { registers.put_if(key, holder, absent).await.map_err(|error| error.to_string()) };
    while !taken().await? {
        say("waits", json!({}));
        tokio::time::sleep(POLL).await;
    }
    say("granted", json!({}));
    loop {
        say("acted", json!({}));
        tokio::time::sleep(BEAT).await;
    }
}

async fn acting(
    endpoints: &str,
    holder: &str,
    resource: &str,
    ttl_ms: u64,
    careful: bool,
) -> Result<(), String> {
    let client = connect(endpoints)?;
    let session = open(&client, holder, ttl_ms).await?;
    say("waits", json!({}));
    let lease = acquired(&session, resource).await?;
    let mut stopped = false;
    loop {
        // Stamped before the check: whatever the scheduler does in between, the act is no earlier than said.
        let at = moment();
        if !careful {
            say_at(at, "acted", json!({}));
        } else {
            match lease.permit() {
                Ok(permit) => {
                    say_at(at, "acted", json!({"left_ms": millis(permit.time_left())}));
                    stopped = false;
                }
                Err(why) if !stopped => {
                    say_at(at, "stopped", json!({"why": why.to_string()}));
                    stopped = true;
                }
                Err(_) => {}
            }
        }
        tokio::time::sleep(BEAT).await;
    }
}

fn connect(endpoints: &str) -> Result<Client, String> {
    let endpoints = endpoints.parse::<Endpoints>().map_err(|error| error.to_string())?;
    Ok(Client::connect(&endpoints))
}

async fn open(client: &Client, holder: &str, ttl_ms: u64) -> Result<Session, String> {
    let session = client.session().holder(holder).ttl(Duration::from_millis(ttl_ms)).open().await;
    let session = session.map_err(|error| error.to_string())?;
    say("opened", json!({"session": session.number().get()}));
    Ok(session)
}

/// Waits in the queue until it is granted.
async fn acquired(session: &Session, resource: &str) -> Result<Lease, String> {
    let lease = session.acquire(resource).wait().await.map_err(|error| error.to_string())?;
    let token = lease.permit().map(|permit| permit.token().get()).unwrap_or(0);
    say("granted", json!({"token": token, "waited_ms": millis(lease.waited())}));
    Ok(lease)
}

/// The director's lines, read on a thread of their own; the last one ends the part.
pub fn lines() -> mpsc::UnboundedReceiver<String> {
    let (send, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Reports an event.
pub fn say(said: &str, body: Value) {
    say_at(moment(), said, body);
}

fn say_at(at: Duration, said: &str, mut body: Value) {
    body["said"] = json!(said);
    body["at_us"] = json!(u64::try_from(at.as_micros()).unwrap_or(u64::MAX));
    let mut stdout = std::io::stdout().lock();
    // Without the demo nobody reads events, and the role has nothing left to do.
    if writeln!(stdout, "{body}").and_then(|()| stdout.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Whole milliseconds.
pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
