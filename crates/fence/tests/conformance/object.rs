//! The suite on an S3 stand-in, for both shapes. The stand-in judges conditions as S3 does, also under races;
//! it keeps everything in memory, so it cannot show a restart, and it is one process, so it cannot show what
//! replication between regions would do.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt};
use tenure_core::{Permit, Scope, Token};
use tenure_fence::object::{self, Log, Manifest};
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, Takeover};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cases::{self, Gate, REASON, Subject};
use crate::support::{self, Server};

mod manifest {
    crate::conform!(super::Entries::start);
}

mod log {
    crate::conform!(super::Records::start);
}

/// The port of the shared stand-in.
fn stand_in() -> Option<u16> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    let server = tokio::task::block_in_place(|| SHARED.get_or_init(support::moto).as_ref())?;
    support::http::request(server.port, "PUT", "/fenced", "");
    Some(server.port)
}

/// A bucket in the shared stand-in.
async fn bucket() -> Option<Arc<dyn ObjectStore>> {
    Some(bucket_at(stand_in()?))
}

fn bucket_at(port: u16) -> Arc<dyn ObjectStore> {
    let store = AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{port}"))
        .with_allow_http(true)
        .with_http_connector(Plain)
        .with_bucket_name("fenced")
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .build()
        .expect("a client");
    Arc::new(store)
}

/// Plain HTTP, one connection per request: all that a server on the same machine needs.
#[derive(Clone, Copy, Debug)]
struct Plain;

impl HttpConnector for Plain {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Plain))
    }
}

impl HttpService for Plain {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Answered> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let failed = |kind| move |error| HttpError::new(kind, error);
            let port = request.uri().port_u16().expect("the stand-in has a port");
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            let stream = stream.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(failed(HttpErrorKind::Connect))?;
            tokio::spawn(connection);
            let (mut head, body) = request.into_parts();
            // A server learns where it is by a header, and what is wanted by the path alone.
            let host = head.uri.authority().expect("an address").to_string();
            head.headers.insert("host", host.parse().expect("a host"));
            let path = head.uri.path_and_query().expect("a path").as_str().parse();
            head.uri = path.expect("a path");
            let request = hyper::Request::from_parts(head, body);
            let answer = sender.send_request(request).await.map_err(failed(HttpErrorKind::Interrupted))?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(failed(HttpErrorKind::Interrupted))?.to_bytes();
            Ok(hyper::Response::from_parts(head, HttpResponseBody::from(body)))
        })
    }
}

type Answered = Result<HttpResponse, HttpError>;

/// The objects of one folder, as text.
async fn everything(folder: &str) -> String {
    let store = bucket().await.expect("a bucket");
    let mut text = String::new();
    for object in store.list_with_delimiter(Some(&folder.into())).await.expect("a list").objects {
        let bytes = store.get(&object.location).await.expect("an object").bytes().await.expect("bytes");
        text += &String::from_utf8_lossy(&bytes);
    }
    text
}

/// The stand-in is one slow process: with too many cases at once, leases run out before it answers.
async fn turn() -> SemaphorePermit<'static> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    TURNS.acquire().await.expect("never closed")
}

struct Entries(Manifest, #[expect(dead_code, reason = "held")] SemaphorePermit<'static>);

impl Entries {
    async fn start(_case: &str) -> Option<Entries> {
        let turn = turn().await;
        Some(Entries(Manifest::new(bucket().await?, "manifests"), turn))
    }
}

impl Subject for Entries {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.0.barrier(takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.0.mark(scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        self.0.repair(scope, to, &"operator".parse().expect("a name"), REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        everything(&format!("manifests/{scope}")).await
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        self.0.put(permit, key, value.to_owned()).await
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        self.0.delete(permit, key).await
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        let object = self.0.upload(permit, value.to_owned()).await?;
        self.0
            .commit_and_advance(permit, cursor, |entries| {
                drop(entries.insert(key.to_owned(), object.clone()))
            })
            .await
    }

    /// Stops between the read of the manifest and its replacement.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        let object = self.0.upload(permit, value.to_owned()).await?;
        let mut gate = Some(gate);
        self.0
            .commit(permit, |entries| {
                if let Some(gate) = gate.take() {
                    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(gate.pass()));
                }
                entries.insert(key.to_owned(), object.clone());
            })
            .await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let bytes = self.0.get(scope, key).await.expect("get")?;
        Some(String::from_utf8(bytes).expect("text"))
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

struct Records(Log, #[expect(dead_code, reason = "held")] SemaphorePermit<'static>);

impl Records {
    async fn start(_case: &str) -> Option<Records> {
        let turn = turn().await;
        Some(Records(Log::new(bucket().await?, "logs"), turn))
    }
}

impl Subject for Records {
    /// Another holder is another process: it has no memory of this one's last record.
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        Log::new(bucket().await.expect("a bucket"), "logs").barrier(takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.0.mark(scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        self.0.repair(scope, to, &"operator".parse().expect("a name"), REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        everything(&format!("logs/{scope}/=log")).await
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        self.0.append(permit, format!("{key}={value}").as_bytes()).await.map(drop)
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        self.0.append(permit, key.as_bytes()).await.map(drop)
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        self.0.append_and_advance(permit, format!("{key}={value}").as_bytes(), cursor).await.map(drop)
    }

    /// Stops before the append, with the number that was free then in memory.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        self.0.mark(permit.scope()).await?;
        gate.pass().await;
        self.put(permit, key, value).await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let mut value = None;
        for record in self.0.read(scope, 0).await.expect("read") {
            let line = String::from_utf8(record.body).expect("text");
            match line.split_once('=') {
                Some((name, new)) if name == key => value = Some(new.to_owned()),
                None if line == key => value = None,
                _ => {}
            }
        }
        value
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

/// A store whose conditions do nothing must not be trusted with a fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probe_accepts_conditions_and_refuses_their_absence() {
    let Some(store) = bucket().await else { return };
    object::probe(&*store, "probe").await.expect("the stand-in honours conditions");
    let careless = support::http::serve(|_| support::http::answer("200 OK", "etag: \"1\"\r\n"));
    let refused = object::probe(&*bucket_at(careless), "probe").await.expect_err("every writer wins");
    assert!(matches!(refused, FenceError::Refused { .. }), "{refused}");
}

/// A server does what it was asked and answers with an error; the driver asks again and is told that
/// somebody was faster. It was itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_done_but_answered_with_an_error_is_done_once() {
    let Some(port) = stand_in() else { return };
    let lies = Arc::new(AtomicU64::new(0));
    let liar = support::http::serve({
        let lies = lies.clone();
        move |message| {
            let answer = support::http::forward(port, &message);
            let conditional = message.has_header("if-match") || message.has_header("if-none-match");
            if conditional
                && answer.head.starts_with("HTTP/1.1 200")
                && lies.fetch_add(1, Ordering::SeqCst) < 4
            {
                return support::http::answer("500 Internal Server Error", "");
            }
            answer
        }
    });
    let scope = cases::fresh_scope("liar");
    let permit = cases::permit(&scope, 1);
    let manifest = Manifest::new(bucket_at(liar), "manifests");
    for round in 1..=2 {
        // Counted, so that doing it twice would show.
        let count = |entries: &mut BTreeMap<String, String>| {
            let count = entries.get("count").map_or(0, |count| count.parse::<u32>().expect("a number"));
            entries.insert("count".into(), (count + 1).to_string());
        };
        manifest.commit(&permit, count).await.expect("commit");
        assert_eq!(manifest.entries(&scope).await.expect("entries")["count"], round.to_string());
    }
    let log = Log::new(bucket_at(liar), "logs");
    for number in 1..=2 {
        assert_eq!(log.append(&permit, b"once").await.expect("append"), number);
    }
    assert_eq!(log.read(&scope, 0).await.expect("read").len(), 2);
    assert!(lies.load(Ordering::SeqCst) >= 4, "the server did lie");
}

/// A writer that ignores the rules puts a record of an old token behind a newer one: readers pass it over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_log_pass_over_records_of_older_tokens() {
    let Some(records) = Records::start("older").await else { return };
    let scope = cases::fresh_scope("older");
    records.put(&cases::permit(&scope, 2), "a", "two").await.expect("put");
    let store = bucket().await.expect("a bucket");
    let forged = r#"{"token":1,"holder":null,"seq":0,"cursor":null,"attempt":"x","body":"613d6f6c64"}"#;
    let path = object_store::path::Path::from(format!("logs/{scope}/=log/{:020}", 2));
    store.put(&path, forged.into()).await.expect("forge");
    assert_eq!(records.get(&scope, "a").await.as_deref(), Some("two"));
}
