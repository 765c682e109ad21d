//! How a refusal or failure is reported over HTTP: the table is `tenure_wire`'s, this is its envelope.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tenure_wire::{ApiError, Code, json};

/// An error as an answer: `{"error":{"code","message","hint","effect",…}}`.
#[derive(Debug)]
pub(crate) struct Refused(pub ApiError);

impl<E: Into<ApiError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Refused(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(error) = self;
        let code = error.code;
        let status = StatusCode::from_u16(code.http_status()).expect("the table has statuses");
        let retry_after = error.retry_after_ms.map(|millis| millis.div_ceil(1_000).max(1));
        let about = Arc::new((*error.about).clone());
        let mut response = (status, Json(json::ErrorBody { error })).into_response();
        response.extensions_mut().insert(about);
        if code == Code::Unauthenticated {
            let how = HeaderValue::from_static("Bearer realm=\"tenure\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        }
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(code, Code::TooLarge) {
            // What is left of the body is not worth reading.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(code);
        response
    }
}

/// No such path, or no such verb.
pub(crate) fn no_such_call(what: &str) -> ApiError {
    ApiError::new(Code::NoSuchCall, format!("there is nothing at {what}")).hint(
        "GET /openapi.json lists every call; a verb follows the last `:`, and a literal colon in the last segment is `%3A`",
    )
}
