//! HTTP/JSON: the surface that `curl`, the dashboard and the smallest clients use.
//!
//! Handlers read a request into checked types, ask [`Api`](crate::front::Api), and write the answer as `tenure_wire`'s
//! JSON. They hold no rule of their own: which path leads to which handler is in the table of calls, how a request is
//! read is `request.rs`, what an error looks like is `error.rs`, what can be asked is `crate::calls`.

pub(crate) mod auth;
pub(crate) mod dashboard;
mod error;
pub(crate) mod fences;
pub(crate) mod leases;
pub(crate) mod openapi;
pub(crate) mod pages;
pub(crate) mod registers;
mod request;
pub(crate) mod sequencers;
pub(crate) mod session_events;
pub(crate) mod sessions;
pub(crate) mod watch;

use axum::body::Body;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use tenure_wire::{ApiError, Code};

use crate::call_table::{HttpBinding, Missing};

pub(crate) use error::{Refused, no_such_call};
pub(crate) use request::HttpRequest;

/// What a handler answers.
type HttpResult<T> = Result<axum::Json<T>, Refused>;

/// Since when the deprecated paths are: the day of release 0.1.0, as RFC 9745 writes it.
const DEPRECATED_SINCE: HeaderValue = HeaderValue::from_static("@1794960000");
/// Where it says what to use instead.
const DEPRECATED_LINK: HeaderValue = HeaderValue::from_static("</openapi.json>; rel=\"deprecation\"");

/// The answer to a request that no call takes.
pub(crate) fn missing(why: Missing, method: &Method, path: &str) -> Response {
    match why {
        Missing::NoSuchCall(what) => Refused(no_such_call(&what)).into_response(),
        Missing::WrongMethod(methods) => {
            let message = format!("{path} cannot be called with {method}");
            let error =
                ApiError::new(Code::MethodNotAllowed, message).hint("GET /openapi.json lists every call");
            let mut response = Refused(error).into_response();
            if let Ok(methods) = HeaderValue::try_from(methods) {
                response.headers_mut().insert(header::ALLOW, methods);
            }
            response
        }
    }
}

/// What every answer of this surface has in its head. Answers are of the moment, and what they are is said once.
pub(crate) fn finish(mut response: Response, method: &Method, binding: Option<&HttpBinding>) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if binding.is_some_and(|binding| binding.deprecated) {
        headers.insert("deprecation", DEPRECATED_SINCE);
        headers.append(header::LINK, DEPRECATED_LINK);
    }
    if method == Method::HEAD {
        // The head of what a GET would have answered, without its body.
        if let Some(length) = response.body().size_hint().exact() {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        return response.map(|_| Body::empty());
    }
    response
}
