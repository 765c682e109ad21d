//! Sequencers: issued by the node, checked by anybody who has its keys.

use serde_json::{Value, json};
use tenure_core::{Scope, Token};
use tenure_fence::sequencer::{ClaimedMode, Keys, SequencerError, Signing};
use tenure_wire::proto::sequencers_client::SequencersClient;
use tenure_wire::proto::{self, SequencerVerdict};

use super::Node;

const RESOURCE: &str = "settlement/cron";

fn scope() -> Scope {
    RESOURCE.parse().expect("a scope")
}

impl Node {
    /// What a storage front end has: the cluster's name and its keys, fetched once.
    async fn keys(&self) -> Keys {
        let cluster = self.get("/v1/cluster").await.ok()["cluster"].as_str().expect("a name").to_owned();
        let page = self.get("/.well-known/jwks.json").await;
        assert!(!page.json().to_string().contains("\"d\""), "no private half");
        Keys::from_jwks(cluster, std::str::from_utf8(&page.body).expect("text")).expect("a key set")
    }

    async fn issue(&self, grant: &Value) -> String {
        let body = json!({"session": grant["session"], "resource": grant["resource"]});
        self.post("/v1/sequencers", body).await.ok()["sequencer"].as_str().expect("a sequencer").to_owned()
    }

    async fn verdict(&self, sequencer: &str) -> Value {
        self.post("/v1/sequencers:check", json!({"sequencer": sequencer})).await.ok()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_stated_signed_and_checked_offline() {
    let node = Node::start().await;
    // Fetched ahead: a fence that knows the keys before anything is signed need never ask again.
    let keys = node.keys().await;
    let body = json!({"holder": "a", "ttl_ms": 60_000});
    let grant = node.post(&format!("/v1/leases/{RESOURCE}:acquire?sequencer=true"), body).await.ok();
    let sequencer = grant["sequencer"].as_str().expect("a sequencer");

    let writer = keys.verify_writer(sequencer, &scope()).expect("signed by this cluster");
    let claims = writer.claims();
    assert_eq!(json!(claims.token.get()), grant["token"]);
    assert_eq!((claims.mode, claims.generation.get()), (ClaimedMode::Exclusive, 1));
    assert_eq!(node.verdict(sequencer).await, json!({"verdict": "valid", "presented": 1, "seen": 1}));
    assert_eq!(node.issue(&grant).await, sequencer, "the same grant is stated in the same words");

    // Order, not life: the next grant makes it stale, wherever it is shown.
    let session = &grant["session"];
    node.post(&format!("/v1/leases/{RESOURCE}:release"), json!({"session": session})).await.ok();
    assert_eq!(node.verdict(sequencer).await["verdict"], "valid", "nothing newer was granted");
    let next = node.acquire(RESOURCE, "b").await;
    assert_eq!(node.verdict(sequencer).await, json!({"verdict": "stale", "presented": 1, "seen": 2}));
    assert!(node.keys().await.verify_writer(&node.issue(&next).await, &scope()).is_ok());

    // Only whoever holds it is given one.
    let body = json!({"session": session, "resource": RESOURCE});
    node.post("/v1/sequencers", body).await.refused("unknown_session");
    let other = node.open("c").await;
    node.post("/v1/sequencers", json!({"session": other["session"], "resource": RESOURCE}))
        .await
        .refused("not_held");
}

/// The fear behind all of this: one bug writes 2^53 - 1, and every later holder is shut out for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_made_up_token_is_distinguished_from_a_granted_one() {
    let node = Node::start().await;
    let grant = node.acquire(RESOURCE, "a").await;
    let good = node.issue(&grant).await;
    let keys = node.keys().await;
    let mut claims = keys.verify(&good).expect("signed");
    claims.token = Token::MAX;
    let kid =
        node.get("/.well-known/jwks.json").await.ok()["keys"][0]["kid"].as_str().expect("a kid").to_owned();
    let made_up = Signing::from_seed(kid, &[7; 32]).sign(&claims);
    assert_eq!(keys.verify_writer(&made_up, &scope()), Err(SequencerError::BadSignature));
    assert_eq!(node.verdict(&made_up).await, json!({"verdict": "unknown"}));
    assert_eq!(node.verdict("nonsense").await, json!({"verdict": "unknown"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_still_vouches_for_what_it_signed_and_a_withdrawn_one_does_not() {
    let node = Node::start().await;
    let grant = node.acquire(RESOURCE, "a").await;
    let by_first = node.issue(&grant).await;
    let first = node.get("/.well-known/jwks.json").await.ok()["keys"][0]["kid"].clone();
    let second = node.post("/v1/sequencers:rotate", json!({})).await.ok()["kid"].clone();
    assert_ne!(first, second);
    let by_second = node.issue(&grant).await;
    assert_ne!(by_first, by_second);
    let keys = node.keys().await;
    assert!(keys.verify(&by_first).is_ok(), "what is on its way still arrives");
    assert!(keys.verify(&by_second).is_ok());
    assert_eq!(node.verdict(&by_first).await["verdict"], "valid");

    node.post("/v1/sequencers:rotate", json!({})).await.ok();
    let keys = node.keys().await;
    assert!(matches!(keys.verify(&by_first), Err(SequencerError::UnknownKey { .. })), "two keys are enough");
    assert!(keys.verify(&by_second).is_ok());
    node.post("/v1/sequencers:withdraw", json!({"kid": second})).await.ok();
    assert!(matches!(node.keys().await.verify(&by_second), Err(SequencerError::UnknownKey { .. })));
    assert_eq!(node.verdict(&by_second).await, json!({"verdict": "unknown"}));
    node.post("/v1/sequencers:withdraw", json!({"kid": second})).await.refused("not_found");
}

/// The fear: a key leaks, is withdrawn, and the node that still signs with it publishes it once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_key_never_comes_back() {
    let node = Node::start().await;
    let grant = node.acquire(RESOURCE, "a").await;
    let leaked = node.issue(&grant).await;
    let kids = async || -> Vec<Value> {
        let page = node.get("/.well-known/jwks.json").await.ok();
        page["keys"].as_array().expect("keys").iter().map(|key| key["kid"].clone()).collect()
    };
    let kid = kids().await[0].clone();
    node.post("/v1/sequencers:withdraw", json!({"kid": kid})).await.ok();
    let fresh = node.issue(&grant).await;
    assert_eq!(kids().await.len(), 1);
    assert_ne!(kids().await[0], kid);
    let keys = node.keys().await;
    assert!(keys.verify(&fresh).is_ok());
    assert!(matches!(keys.verify(&leaked), Err(SequencerError::UnknownKey { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_issues_and_checks_the_same() {
    let node = Node::start().await;
    let grant = node.acquire(RESOURCE, "a").await;
    let mut sequencers = SequencersClient::new(node.channel());
    let scope = proto::Scope { resource: RESOURCE.into(), slot: None };
    let session = grant["session"].as_str().expect("an id").to_owned();
    let issue =
        |token| proto::SequencerIssueRequest { session: session.clone(), scope: Some(scope.clone()), token };
    let sequencer = sequencers.issue(issue(1)).await.expect("issued").into_inner().sequencer;
    assert_eq!(sequencer, node.issue(&grant).await);
    let refused = sequencers.issue(issue(9)).await.expect_err("it holds another");
    assert_eq!(refused.metadata().get("tenure-code").expect("a code"), "not_held");
    let checked =
        sequencers.check(proto::SequencerCheckRequest { sequencer }).await.expect("checked").into_inner();
    assert_eq!(checked.verdict(), SequencerVerdict::Valid);
    assert_eq!((checked.presented, checked.seen), (Some(1), Some(1)));
}
