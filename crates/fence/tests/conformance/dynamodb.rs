//! The suite on a DynamoDB stand-in: items of one table, guarded transactions. The stand-in judges conditions
//! and transactions as DynamoDB does; it keeps everything in memory, so it cannot show a restart, and it
//! fails when two transactions meet, so it is handed one request at a time and cannot show their conflicts.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde_json::json;
use tenure_core::{Permit, Scope, Token};
use tenure_fence::dynamodb::{Credentials, DynamoDb};
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, FindOut, Takeover};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cases::{self, Gate, REASON, Subject};
use crate::support::{self, Server, http};

crate::conform!(Items::start);

struct Items {
    fence: DynamoDb,
    port: u16,
    _turn: SemaphorePermit<'static>,
}

const CREATE: &str = r#"{"TableName":"fenced","BillingMode":"PAY_PER_REQUEST",
    "AttributeDefinitions":[{"AttributeName":"pk","AttributeType":"S"}],
    "KeySchema":[{"AttributeName":"pk","KeyType":"HASH"}]}"#;

impl Items {
    async fn start(_case: &str) -> Option<Items> {
        static SHARED: OnceLock<Option<(Server, u16)>> = OnceLock::new();
        static TURNS: Semaphore = Semaphore::const_new(2);
        static ONE: Mutex<()> = Mutex::new(());
        let turn = TURNS.acquire().await.expect("never closed");
        let (_, port) = tokio::task::block_in_place(|| {
            let shared = SHARED.get_or_init(|| {
                let server = support::moto()?;
                post(server.port, "CreateTable", CREATE);
                let port = server.port;
                let one_by_one = http::serve(move |message| {
                    let _one = ONE.lock().expect("nobody panics in here");
                    http::forward(port, &message)
                });
                Some((server, one_by_one))
            });
            shared.as_ref()
        })?;
        Some(Items { fence: fence(*port), port: *port, _turn: turn })
    }
}

fn fence(port: u16) -> DynamoDb {
    let credentials =
        Credentials { access_key: "test".into(), secret_key: "test".into(), session_token: None };
    DynamoDb::new(&format!("http://127.0.0.1:{port}"), "us-east-1", credentials, "fenced")
}

fn post(port: u16, operation: &str, body: &str) -> serde_json::Value {
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-amz-json-1.0\r\nauthorization: \
         AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, \
         Signature=0\r\nx-amz-target: DynamoDB_20120810.{operation}\r\ncontent-length: {}\r\n",
        body.len()
    );
    let answer = http::forward(port, &http::Message { head, body: body.into() });
    assert!(
        answer.head.starts_with("HTTP/1.1 200"),
        "{}{}",
        answer.head,
        String::from_utf8_lossy(&answer.body)
    );
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn key(scope: &Scope, key: &str) -> serde_json::Value {
    json!({"pk": {"S": format!("data#{scope}#{key}")}})
}

fn put(scope: &Scope, name: &str, value: &str) -> serde_json::Value {
    let mut item = key(scope, name);
    item["value"] = json!({"S": value});
    json!({"Put": {"TableName": "fenced", "Item": item}})
}

impl Subject for Items {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.fence.barrier(takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.fence.mark(scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        self.fence.repair(scope, to, &"operator".parse().expect("a name"), REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        let key = json!({"pk": {"S": format!("tenure-fence#{scope}")}});
        let body = json!({"TableName": "fenced", "Key": key, "ConsistentRead": true}).to_string();
        tokio::task::block_in_place(|| post(self.port, "GetItem", &body))["Item"]["audit"].to_string()
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        self.fence.write(permit, vec![put(permit.scope(), key, value)]).await
    }

    async fn delete(&self, permit: &Permit, name: &str) -> Result<(), FenceError> {
        let delete = json!({"Delete": {"TableName": "fenced", "Key": key(permit.scope(), name)}});
        self.fence.write(permit, vec![delete]).await
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        self.fence.write_and_advance(permit, vec![put(permit.scope(), key, value)], cursor).await
    }

    /// A transaction is one request: as far inside as a writer gets is the moment before it is sent.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        gate.pass().await;
        self.put(permit, key, value).await
    }

    async fn get(&self, scope: &Scope, name: &str) -> Option<String> {
        let body =
            json!({"TableName": "fenced", "Key": key(scope, name), "ConsistentRead": true}).to_string();
        let answer = tokio::task::block_in_place(|| post(self.port, "GetItem", &body));
        answer["Item"]["value"]["S"].as_str().map(str::to_owned)
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

/// An answer of 5xx says nothing of what was done, one of 4xx says that nothing was; a throttled request may
/// be sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_says_what_may_have_happened() {
    let scope = cases::fresh_scope("errors");
    let (permit, takeover) = (cases::permit(&scope, 1), cases::takeover(&scope, 1));
    let at = |status: &'static str, kind: &'static str| {
        let body = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{kind}"}}"#);
        fence(http::serve(move |_| http::Message {
            head: format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len()),
            body: body.clone().into(),
        }))
    };
    let broken = at("500 Internal Server Error", "InternalServerError");
    let write = || vec![put(&scope, "a", "a")];
    let unknown = broken.write(&permit, write()).await;
    assert!(
        matches!(unknown, Err(FenceError::Unknown { find_out: FindOut::ReadBack, .. })),
        "a write may have landed: {unknown:?}"
    );
    let unknown = broken.barrier(&takeover).await;
    assert!(matches!(unknown, Err(FenceError::Unknown { find_out: FindOut::Repeat, .. })), "{unknown:?}");
    let busy = at("400 Bad Request", "ThrottlingException").write(&permit, write()).await;
    assert!(matches!(busy, Err(FenceError::Unavailable { .. })), "{busy:?}");
    let wrong = at("400 Bad Request", "ValidationException").write(&permit, write()).await;
    assert!(matches!(wrong, Err(FenceError::Refused { .. })), "{wrong:?}");
}

/// The lease's own rest is the time-out, and what was sent may have landed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_in_time_is_unknown() {
    let scope = cases::fresh_scope("silent");
    let silent = fence(http::serve(|_| {
        loop {
            std::thread::park();
        }
    }));
    let permit = cases::permit_for(&scope, 1, Duration::from_millis(200));
    let unknown = silent.write(&permit, vec![put(&scope, "a", "a")]).await;
    assert!(matches!(unknown, Err(FenceError::Unknown { find_out: FindOut::ReadBack, .. })), "{unknown:?}");
}
