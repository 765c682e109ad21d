//! What a call is: its name, the right it needs, what it costs, and where it can be reached.
//!
//! `table.rs` lists every call of a node, one row each; HTTP routes, gRPC services, the names in metrics and logs,
//! turns, limits of bodies and what keeps a session alive are read from the row (`routes.rs`, `front.rs`). So a new
//! call is one row and its function. This file decides what a row looks like; it never decides what a call does.
//!
//! A row is a name for the code, a name for people, the [`Verb`] it needs, its [`Cost`], and its bindings. Without a
//! verb it does not compile. This does:
//!
//! ```
//! tenure_server::calls! {
//!     /// A table of one call.
//!     pub enum Few {
//!         /// Says that it is there.
//!         Ping = "ping", Read, Page {}
//!     }
//! }
//! assert_eq!(Few::Ping.name(), "ping");
//! ```
//!
//! and this does not:
//!
//! ```compile_fail
//! tenure_server::calls! {
//!     /// A table of one call.
//!     pub enum Few {
//!         /// Says that it is there.
//!         Ping = "ping", Page {}
//!     }
//! }
//! assert_eq!(Few::Ping.name(), "ping");
//! ```

mod routes;
mod table;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::future::BoxFuture;

pub use tenure_core::Verb;

use crate::context::CallContext;
use crate::front::Api;
use crate::http::HttpRequest;

pub(crate) use routes::{Missing, Routes};
pub(crate) use table::Call;

/// What a call costs a node, and so: which turn it takes, how much it may send, and what its connection is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cost {
    /// A page about the node itself. Takes no turn, so that it is there when nothing else is.
    Page,
    /// Whether the node is there: health checks, the leader's probe of its own port. Takes no turn either.
    Check,
    /// Looks at the state.
    Read,
    /// One command through the log.
    Command,
    /// The same, and it opens a session.
    Open,
    /// A command that may wait long for its answer, and may open a session.
    Wait,
    /// Heartbeats. They have turns and room of their own, so that no flood of anything else keeps them out.
    Renewal,
    /// A stream of events, open for as long as somebody watches.
    Watch,
    /// A session stream of commands, open for as long as its client lives.
    Stream,
    /// A session stream of heartbeats.
    RenewalStream,
    /// A backup on its way in: large, and it may take its time as long as it moves.
    Restore,
}

impl Cost {
    /// Whether these are heartbeats, which have turns and room of their own.
    pub(crate) fn is_renewal(self) -> bool {
        matches!(self, Cost::Renewal | Cost::RenewalStream)
    }

    /// Whether it is open as long as its client lives, and meters its own frames.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Cost::Stream | Cost::RenewalStream)
    }

    /// Whether the connection that carried it counts as keeping a session alive.
    pub(crate) fn keeps_session(self) -> bool {
        matches!(self, Cost::Open | Cost::Wait | Cost::Renewal)
    }

    /// Calls that are counted and logged together, under this name; the others go by their own.
    fn shared_label(self) -> Option<&'static str> {
        match self {
            Cost::Page => Some("page"),
            Cost::Stream | Cost::RenewalStream => Some("stream"),
            _ => None,
        }
    }
}

/// One call: a row of the table.
#[derive(Debug)]
pub struct CallRow {
    /// Its name for people: in metrics, logs and documents.
    pub name: &'static str,
    /// The right that it needs.
    pub verb: Verb,
    /// What it costs.
    pub cost: Cost,
    /// Where it can be reached.
    pub bindings: &'static [Binding],
}

impl CallRow {
    /// Its name in metrics and logs.
    pub(crate) fn label(&self) -> &'static str {
        self.cost.shared_label().unwrap_or(self.name)
    }

    /// Whether an answer, or what is sent, is a stream.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> bool {
        self.bindings.iter().any(|binding| match &binding.0 {
            BindingKind::Grpc(binding) => binding.streams,
            _ => self.cost == Cost::Watch,
        })
    }
}

/// What was asked for is in no row.
pub(crate) static OTHER: CallRow =
    CallRow { name: "other", verb: Verb::Public, cost: Cost::Page, bindings: &[] };

/// One place where a call can be reached.
#[derive(Debug)]
pub struct Binding(pub(crate) BindingKind);

#[derive(Debug)]
pub(crate) enum BindingKind {
    Http(HttpBinding),
    Grpc(GrpcBinding),
    /// A gRPC service that is not ours, with all of its methods: health checks, reflection.
    GrpcService(&'static str),
}

/// A method and a path.
#[derive(Debug)]
pub(crate) struct HttpBinding {
    pub method: &'static str,
    /// `/v1/leases/{*resource}:release`: a name in braces is one segment, or the rest of the path with `*`; a verb may
    /// follow.
    pub pattern: &'static str,
    /// Kept for one release, for those who have not changed over.
    pub deprecated: bool,
    pub handler: HttpHandler,
}

/// A method of a gRPC service.
#[derive(Debug)]
pub(crate) struct GrpcBinding {
    /// `/tenure.v1.Leases/Release`
    pub path: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests of the table"))]
    pub streams: bool,
    pub handler: GrpcHandler,
}

pub(crate) type HttpHandler = fn(Arc<Api>, CallContext, HttpRequest) -> BoxFuture<'static, Response<Body>>;
pub(crate) type GrpcHandler = fn(Arc<Api>, CallContext, Request<Body>) -> BoxFuture<'static, Response<Body>>;

impl Binding {
    pub(crate) const fn http(method: &'static str, pattern: &'static str, handler: HttpHandler) -> Binding {
        Binding(BindingKind::Http(HttpBinding { method, pattern, deprecated: false, handler }))
    }

    pub(crate) const fn deprecated(
        method: &'static str,
        pattern: &'static str,
        handler: HttpHandler,
    ) -> Binding {
        Binding(BindingKind::Http(HttpBinding { method, pattern, deprecated: true, handler }))
    }

    pub(crate) const fn grpc(path: &'static str, streams: bool, handler: GrpcHandler) -> Binding {
        Binding(BindingKind::Grpc(GrpcBinding { path, streams, handler }))
    }

    pub(crate) const fn grpc_service(name: &'static str) -> Binding {
        Binding(BindingKind::GrpcService(name))
    }
}

/// Makes a table of calls: an `enum` with one variant per row, and for each its [`CallRow`].
///
/// A row: `Variant = "dotted.name", Verb, Cost { bindings }`. A binding is one of
///
/// - `http(METHOD "/path/{name}:verb" => function)`, where the function is
///   `async fn(Arc<Api>, CallContext, HttpRequest) -> impl IntoResponse`;
/// - `deprecated(METHOD "/path" => function)`: the same, marked as deprecated in documents and answers;
/// - `grpc(unary "/package.Service/Method" => function)`, where the function is
///   `async fn(Arc<Api>, CallContext, Request) -> Result<Response, ApiError>`; with `server_streaming` it answers with a
///   stream, with `client_streaming` it is given one, with `bidi` both;
/// - `service("package.Service")`: a whole gRPC service that somebody else wrote.
#[macro_export]
macro_rules! calls {
    (
        $(#[$doc:meta])*
        $vis:vis enum $calls:ident {
            $(
                $(#[$call_doc:meta])*
                $call:ident = $name:literal, $verb:ident, $cost:ident {
                    $( $kind:ident ( $($binding:tt)* ) )*
                }
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(dead_code, reason = "most calls are reached through their bindings alone")]
        $vis enum $calls { $( $(#[$call_doc])* $call, )* }

        #[allow(dead_code, reason = "a table need not be asked everything")]
        impl $calls {
            /// Every call, in the order of the table.
            $vis const ALL: &'static [$calls] = &[$( $calls::$call ),*];

            /// Its name for people: in metrics, logs and documents.
            $vis fn name(self) -> &'static str {
                self.row().name
            }

            /// The right that it needs.
            $vis fn verb(self) -> $crate::call_table::Verb {
                self.row().verb
            }

            /// What it costs.
            $vis fn cost(self) -> $crate::call_table::Cost {
                self.row().cost
            }

            /// Every row, in the order of the table.
            $vis fn rows() -> &'static [$crate::call_table::CallRow] {
                static ROWS: &[$crate::call_table::CallRow] = &[$(
                    $crate::call_table::CallRow {
                        name: $name,
                        verb: $crate::call_table::Verb::$verb,
                        cost: $crate::call_table::Cost::$cost,
                        bindings: &[$( $crate::call_binding!($kind $($binding)*) ),*],
                    },
                )*];
                ROWS
            }

            /// The row of this call.
            $vis fn row(self) -> &'static $crate::call_table::CallRow {
                &Self::rows()[self as usize]
            }
        }
    };
}

/// One binding of a row; see [`calls!`].
#[doc(hidden)]
#[macro_export]
macro_rules! call_binding {
    (http $method:ident $pattern:literal => $handler:path) => {
        $crate::call_table::Binding::http(stringify!($method), $pattern, $crate::http_handler!($handler))
    };
    (deprecated $method:ident $pattern:literal => $handler:path) => {
        $crate::call_table::Binding::deprecated(
            stringify!($method),
            $pattern,
            $crate::http_handler!($handler),
        )
    };
    (grpc unary $path:literal => $handler:path) => {
        $crate::call_table::Binding::grpc($path, false, |api, context, request| {
            Box::pin($crate::grpc::unary(request, move |message| $handler(api, context, message)))
        })
    };
    (grpc server_streaming $path:literal => $handler:path) => {
        $crate::call_table::Binding::grpc($path, true, |api, context, request| {
            Box::pin($crate::grpc::server_streaming(request, move |message| $handler(api, context, message)))
        })
    };
    (grpc client_streaming $path:literal => $handler:path) => {
        $crate::call_table::Binding::grpc($path, true, |api, context, request| {
            Box::pin($crate::grpc::client_streaming(request, move |messages| {
                $handler(api, context, messages)
            }))
        })
    };
    (grpc bidi $path:literal => $handler:path) => {
        $crate::call_table::Binding::grpc($path, true, |api, context, request| {
            Box::pin($crate::grpc::bidi(request, move |messages| $handler(api, context, messages)))
        })
    };
    (service $name:literal) => {
        $crate::call_table::Binding::grpc_service($name)
    };
}

/// A function of the HTTP surface as the table keeps it; see [`calls!`].
#[doc(hidden)]
#[macro_export]
macro_rules! http_handler {
    ($handler:path) => {
        |api, context, request| {
            Box::pin(async move {
                axum::response::IntoResponse::into_response($handler(api, context, request).await)
            })
        }
    };
}
