//! The surfaces of a real node, without a socket in between: a single replica on a disk in memory, its leader's
//! loop, and requests handed to the front as a connection would.

mod access;
mod credentials;
mod grpc;
mod hang_up;
mod http;
mod input;
mod listening;
mod records;
mod schema;
mod secrets;
mod sequencers;
mod snapshots;
mod table;
mod watching;
mod web;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tenure_clock::SystemClock;
use tenure_replica::{Entropy, Execution, SimDisk, TcpNetwork};
use tokio::sync::watch;

use crate::call_table::{Call, CallRow};
use crate::config::Config;
use crate::front::{Front, FrontLimits};
use crate::listen::bind;
use crate::server::{Server, World};

/// A node and a front of it that tests call.
struct Node {
    /// Keeps the node running.
    _server: Server,
    front: Front,
    disk: Arc<SimDisk>,
    stop: watch::Sender<bool>,
}

/// What a request was answered.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The body, if the call was done.
    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The error, if it was refused with this code.
    #[track_caller]
    fn refused(&self, code: &str) -> Value {
        let error = self.json()["error"].clone();
        assert_eq!(error["code"], code, "{} {}", self.status, String::from_utf8_lossy(&self.body));
        let table: tenure_wire::Code = code.parse().expect("a code of the table");
        assert_eq!(self.status.as_u16(), table.http_status());
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        error
    }
}

impl Node {
    async fn start() -> Node {
        Node::start_with(FrontLimits::default()).await
    }

    async fn start_with(limits: FrontLimits) -> Node {
        Node::start_with_calls(&[Call::rows()], limits).await
    }

    /// A node of another configuration.
    async fn configured(configure: impl FnOnce(&mut Config)) -> Node {
        Node::start_as(&[Call::rows()], FrontLimits::default(), configure).await
    }

    async fn start_with_calls(tables: &[&'static [CallRow]], limits: FrontLimits) -> Node {
        Node::start_as(tables, limits, |_| {}).await
    }

    /// A node on a disk that may have been used before.
    async fn start_on(disk: Arc<SimDisk>, configure: impl FnOnce(&mut Config)) -> Node {
        Node::start_all(disk, &[Call::rows()], FrontLimits::default(), configure).await
    }

    async fn start_as(
        tables: &[&'static [CallRow]],
        limits: FrontLimits,
        configure: impl FnOnce(&mut Config),
    ) -> Node {
        Node::start_all(Arc::new(SimDisk::new()), tables, limits, configure).await
    }

    async fn start_all(
        disk: Arc<SimDisk>,
        tables: &[&'static [CallRow]],
        limits: FrontLimits,
        configure: impl FnOnce(&mut Config),
    ) -> Node {
        let (accept, address) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let world = World {
            clock: Arc::new(SystemClock),
            disk: disk.clone(),
            network: Arc::new(TcpNetwork),
            entropy: Entropy::default(),
            execution: Execution::Tasks,
        };
        let mut config = Config::single(address, "unused".into());
        configure(&mut config);
        let server = Server::start_in(config, world, accept, address).await.unwrap();
        let (stop, stopping) = watch::channel(false);
        let front = Front::with_calls(
            tables,
            server.node().clone(),
            Arc::new(SystemClock),
            address,
            (Some("lease.example"), &[]),
            limits,
            server.callers().clone(),
            stopping,
        );
        let node = Node { _server: server, front, disk, stop };
        while node.get("/readyz").await.status != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        node
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.front.clone().answer(request).await
    }

    async fn call(&self, method: Method, path: &str, body: impl Into<Body>) -> Reply {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7400");
        self.reply(request.body(body.into()).unwrap()).await
    }

    async fn reply(&self, request: Request<Body>) -> Reply {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (head, body) = self.send(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
        schema::check(&method, &path, head.status, content_type.unwrap_or_default(), &body);
        Reply { status: head.status, headers: head.headers, body }
    }

    /// A call of the session with this id.
    async fn call_as(&self, session: &str, method: Method, path: &str, body: impl Into<Body>) -> Reply {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7400");
        self.reply(request.header("tenure-session", session).body(body.into()).unwrap()).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, Body::empty()).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(Method::POST, path, body.to_string()).await
    }

    async fn put(&self, path: &str, body: Value) -> Reply {
        self.call(Method::PUT, path, body.to_string()).await
    }

    async fn delete(&self, path: &str, body: Value) -> Reply {
        self.call(Method::DELETE, path, body.to_string()).await
    }

    /// A lease of one minute.
    async fn acquire(&self, resource: &str, holder: &str) -> Value {
        let body = json!({"holder": holder, "ttl_ms": 60_000});
        self.post(&format!("/v1/leases/{resource}:acquire"), body).await.ok()
    }

    async fn open(&self, holder: &str) -> Value {
        self.post("/v1/sessions", json!({"holder": holder, "ttl_ms": 60_000})).await.ok()
    }

    /// Waits until so many wait in the queue.
    async fn until_waiting(&self, resource: &str, count: usize) {
        let path = format!("/v1/leases/{resource}");
        while self.get(&path).await.json()["waiters"].as_array().map_or(0, Vec::len) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
