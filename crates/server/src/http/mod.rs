//! HTTP/JSON: the surface that `curl`, the dashboard and the smallest clients use.
//!
//! Handlers read a request into checked types, ask [`Api`], and write the answer as `tenure_wire`'s JSON. They
//! hold no rule of their own: what a path means is `path.rs`, what an error looks like is `error.rs`, what can be
//! asked is `crate::calls`.

mod dashboard;
mod error;
mod extract;
mod fences;
mod leases;
mod openapi;
mod pages;
mod path;
mod registers;
mod sequencers;
mod sessions;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tenure_wire::{ApiError, Code};

use crate::front::Api;

pub(crate) use error::Refused;
pub(crate) use path::call;

/// What a handler answers.
type HttpResult<T> = Result<axum::Json<T>, Refused>;

/// Every path there is. `openapi.rs` describes the same, and a test compares the two.
pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::open))
        .route("/v1/sessions:renew", post(sessions::renew_many))
        .route("/v1/sessions/{id}", get(sessions::get).post(sessions::verb).delete(sessions::close))
        .route("/v1/leases", get(leases::list))
        .route("/v1/leases:acquire", post(leases::acquire_many))
        .route("/v1/leases:cancel", post(leases::cancel))
        .route("/v1/leases/{*resource}", get(leases::get).post(leases::verb))
        .route("/v1/history/{*resource}", get(leases::history))
        .route("/v1/history", get(leases::histories))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/events", get(watch::events))
        .route("/v1/registers", get(registers::list))
        .route("/v1/registers:write", post(registers::write))
        .route(
            "/v1/registers/{*key}",
            get(registers::get).put(registers::put).delete(registers::delete).post(registers::verb),
        )
        .route("/v1/fences/{*resource}", get(fences::get).post(fences::verb))
        .route("/v1/sequencers", post(sequencers::issue))
        .route("/v1/sequencers:check", post(sequencers::check))
        .route("/v1/sequencers:rotate", post(sequencers::rotate))
        .route("/v1/sequencers:withdraw", post(sequencers::withdraw))
        .route("/.well-known/jwks.json", get(sequencers::keys))
        .route("/v1/cluster", get(pages::cluster))
        .route("/v1/probe/{number}", post(pages::probe))
        .route("/metrics", get(pages::metrics))
        .route("/healthz", get(pages::healthz))
        .route("/readyz", get(pages::readyz))
        .route("/openapi.json", get(openapi::page))
        .merge(dashboard::router())
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::map_response(plain_headers))
        .with_state(api)
}

async fn nothing_here(uri: Uri) -> Refused {
    Refused(error::no_such_call(uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let error =
        ApiError::new(Code::MethodNotAllowed, format!("{} cannot be called with {method}", uri.path()))
            .hint("GET /openapi.json lists every call");
    let mut response = Refused(error).into_response();
    if let Some(methods) = path::methods(uri.path()) {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// Answers are of the moment, and what they are is said once.
async fn plain_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
