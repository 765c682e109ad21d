//! What a reader of a disk finds of session ids and nonces, and what he can do with it: nothing.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Method;
use serde_json::{Value, json};
use tenure_core::{FormatVersion, Identity, Machine, Renewal, RenewalAnswer, SessionId};
use tenure_replica::SimDisk;
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::{proto, words};

use super::Node;
use super::grpc::CommandStream;
use crate::failure::Failure;
use crate::forward::RenewalBatch;
use crate::secrets::{hashed_id, stored_nonce};

const NONCE: &str = "00112233445566778899aabbccddeeff";

fn id(answer: &Value) -> SessionId {
    answer["session"].as_str().expect("a whole id").parse().expect("a session id")
}

/// The places where these bits stand, as they are or as text.
fn found(disk: &SimDisk, bits: &[u8]) -> Vec<String> {
    let text = words::hex(bits);
    let holds = |content: &[u8], wanted: &[u8]| content.windows(wanted.len()).any(|part| part == wanted);
    let in_file = |name: &String| {
        // A file may be removed while it is looked for: the log of before a snapshot is.
        let content = disk.content(name).unwrap_or_default();
        holds(&content, bits) || holds(&content, text.as_bytes())
    };
    disk.names().into_iter().filter(in_file).collect()
}

/// Every kind of command that names a session goes through the log; then a snapshot is made of it.
#[tokio::test(flavor = "multi_thread")]
async fn log_and_snapshot_hold_neither_session_ids_nor_nonces() {
    let node = Node::start().await;
    let opened = node.open("a").await;
    let own = id(&opened);
    let session = &opened["session"];
    let by_nonce = json!({"holder": "b", "ttl_ms": 60_000, "nonce": NONCE});
    let named = id(&node.post("/v1/sessions", by_nonce.clone()).await.ok());
    let plain = id(&node.acquire("held", "c").await);
    for (path, body) in [
        ("/v1/leases/x:acquire", json!({"session": session, "number": 1})),
        ("/v1/leases/y:acquire", json!({"session": session})),
        (
            "/v1/leases/held:acquire",
            json!({"session": session, "number": 2, "wait_ms": 60_000, "poll_ms": 1}),
        ),
        ("/v1/leases:cancel", json!({"session": session, "acquire": 2, "number": 3})),
        ("/v1/leases/x:release", json!({"session": session, "number": 4})),
        ("/v1/registers/k", json!({"session": session, "value": "v", "ephemeral": true})),
    ] {
        let method = if path.starts_with("/v1/registers") { Method::PUT } else { Method::POST };
        let reply = node.call_as(&own.to_string(), method, path, body.to_string()).await;
        assert!(reply.status.is_success(), "{path} {reply:?}");
    }
    let replica = node.front.api().node.replica();
    replica.trigger_snapshot().await.unwrap();
    while !node.disk.names().iter().any(|name| name.contains("snapshot")) {
        tokio::task::yield_now().await;
    }
    let nonce: [u8; 16] = words::nonce_from_hex(NONCE).unwrap().as_bytes().to_owned();
    for bits in [own.secret.as_bytes(), named.secret.as_bytes(), plain.secret.as_bytes(), &nonce] {
        assert_eq!(found(&node.disk, bits), Vec::<String>::new());
    }
    assert!(!found(&node.disk, b"held").is_empty(), "or nothing was looked into");
    assert_eq!(id(&node.post("/v1/sessions", by_nonce).await.ok()), named, "found again by its nonce");
}

/// Whoever has read a state presents what is in it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_of_an_id_opens_nothing() {
    let node = Node::start().await;
    let opened =
        node.post("/v1/sessions", json!({"holder": "b", "ttl_ms": 60_000, "nonce": NONCE})).await.ok();
    node.post("/v1/leases/x:acquire", json!({"session": opened["session"]})).await.ok();
    let own = id(&opened);
    let inner = &node.front.api().node;
    let (stored, nonce) = (hashed_id(own), stored_nonce(words::nonce_from_hex(NONCE).unwrap()));
    assert!(inner.glance(|machine| machine.knows(&stored) && machine.knows_nonce(nonce)), "this is stored");
    let secret = stored.secret;
    let stolen = format!("{}-{}", own.number, words::hex(secret.as_bytes()));
    assert_ne!(stolen, own.to_string());
    for (path, body) in [
        ("/v1/session:renew", json!({})),
        ("/v1/session:paused", json!({"paused_ms": 1})),
        ("/v1/leases/x:release", json!({"session": stolen})),
        ("/v1/leases/y:acquire", json!({"session": stolen})),
        ("/v1/sequencers", json!({"session": stolen, "resource": "x"})),
    ] {
        let reply = node.call_as(&stolen, Method::POST, path, body.to_string()).await;
        reply.refused("unknown_session");
    }
    for method in [Method::GET, Method::DELETE] {
        node.call_as(&stolen, method, "/v1/session", Body::empty()).await.refused("unknown_session");
    }
    let mut stream = CommandStream::connect(&node).await;
    let attach = Asked::Attach(proto::StreamAttach { secret: secret.as_bytes().to_vec() });
    assert!(matches!(stream.ask(own.number.get(), None, attach).await, Content::Error(_)));
    // The stored nonce is another nonce: it finds nothing and cancels nothing.
    let stored = words::hex(nonce.as_bytes());
    let other =
        node.post("/v1/sessions", json!({"holder": "b", "ttl_ms": 60_000, "nonce": stored})).await.ok();
    assert_ne!(id(&other).number, own.number);
    let still = node.call_as(&own.to_string(), Method::GET, "/v1/session", Body::empty()).await.ok();
    assert_eq!(still["session_number"], own.number.get());
}

/// What one node forwards to another for a session must show that it knows the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_renewal_without_proof_renews_nothing() {
    let node = Node::start().await;
    let number = id(&node.open("a").await).number;
    let inner = &node.front.api().node;
    let renewals = || vec![Renewal { session: number, number: 7 }];
    let last = || inner.glance(|machine| machine.last_transmission(number));
    let unproved = inner.renew_proved(RenewalBatch::unproved(renewals())).await;
    assert_eq!(unproved, Err(Failure::overloaded()), "as an older version, which this cluster has left");
    let guessed = RenewalBatch { renewals: renewals(), proofs: vec![1] };
    assert_eq!(inner.renew_proved(guessed).await, Ok(vec![RenewalAnswer::UnknownSession]));
    assert_eq!(last(), Some(0), "nothing was applied");
    let proof = inner.glance(|machine| machine.proof_of(number)).expect("it is open");
    let proved = RenewalBatch { renewals: renewals(), proofs: vec![proof] };
    let answers = inner.renew_proved(proved).await.unwrap();
    assert!(matches!(answers[..], [RenewalAnswer::Renewed { number: 7, .. }]), "{answers:?}");
    assert_eq!(last(), Some(7));
}

/// A cluster that has sessions raises its version: they stay usable by their ids and nonces, what is new is hashed, and
/// when the old ones have ended nothing of them is left.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_from_before_the_raise_keep_their_form_until_they_end() {
    let old = Node::configured(|config| config.format_newest = FormatVersion::V1).await;
    let by_nonce = json!({"holder": "b", "ttl_ms": 600_000, "nonce": NONCE});
    let named = id(&old.post("/v1/sessions", by_nonce.clone()).await.ok());
    let opened = id(&old.post("/v1/sessions", json!({"holder": "a", "ttl_ms": 600_000})).await.ok());
    old.post("/v1/leases/x:acquire", json!({"session": opened.to_string()})).await.ok();
    assert!(!found(&old.disk, opened.secret.as_bytes()).is_empty(), "version 1 has no other form");

    let node = Node::start_on(Arc::new(old.disk.copy()), |_| {}).await;
    let inner = node.front.api().node.clone();
    let plain = || inner.glance(Machine::plain_sessions);
    assert_eq!((inner.format(), plain()), (FormatVersion::V1, 2));
    inner.upgrade_here().await.unwrap();
    assert_eq!((inner.format(), plain()), (FormatVersion::V2, 2));
    let in_the_log = || {
        let files = [opened, named].into_iter().flat_map(|id| found(&node.disk, id.secret.as_bytes()));
        files.filter(|name| name.contains("log")).collect::<Vec<_>>()
    };
    while !in_the_log().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(id(&node.post("/v1/sessions", by_nonce.clone()).await.ok()), named, "by its nonce");
    node.post("/v1/leases/x:release", json!({"session": opened.to_string()})).await.ok();
    let renewed = inner.renew(&Identity::Anyone, vec![(opened, 0), (named, 0)]).await.unwrap();
    assert!(renewed.iter().all(|answer| *answer != RenewalAnswer::UnknownSession), "{renewed:?}");
    let new = id(&node.open("new").await);
    assert_eq!(plain(), 2);
    assert_eq!(found(&node.disk, new.secret.as_bytes()), Vec::<String>::new());
    for session in [opened, named, new] {
        node.call_as(&session.to_string(), Method::DELETE, "/v1/session", Body::empty()).await.ok();
    }
    assert_eq!(plain(), 0);
    // A snapshot has taken the place of the log before the raise; both sessions were open in it, and have ended since.
    let replica = inner.replica();
    replica.compact().await.unwrap();
    let left =
        || [opened, named].iter().flat_map(|id| found(&node.disk, id.secret.as_bytes())).collect::<Vec<_>>();
    while !left().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    node.post("/v1/sessions", by_nonce).await.refused("nonce_used");
}

/// Opens that were queued when the version was raised are refused, with nothing applied, rather than carried over in a
/// form that their callers do not wait for; commands of sessions are carried over.
#[tokio::test(flavor = "multi_thread")]
async fn commands_from_before_the_raise_are_carried_over_or_refused() {
    let node = Node::start().await;
    let inner = node.front.api().node.clone();
    let own = id(&node.open("a").await);
    let forwarded = async |command: tenure_core::Command| {
        let (version, mut encoded) = (FormatVersion::V1, Vec::new());
        tenure_wire::encode_command(version, &command, &mut encoded);
        inner.answer_to(&Identity::Anyone, crate::node::Submission::Forwarded { version, encoded }).await
    };
    let open = tenure_core::Open {
        holder: "late".parse().unwrap(),
        ttl: std::time::Duration::from_secs(60),
        nonce: None,
        secret: own.secret,
        number: 1,
    };
    assert_eq!(forwarded(tenure_core::Command::Open(open)).await, Err(Failure::overloaded()));
    let close = tenure_core::Command::Close {
        by: tenure_core::Caller::unnumbered(own),
        why: tenure_core::EndReason::Released,
    };
    assert_eq!(forwarded(close).await, Ok(Ok(tenure_core::Done::Closed { released: 0 })));
    assert_eq!(found(&node.disk, own.secret.as_bytes()), Vec::<String>::new());
}
