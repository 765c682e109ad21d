//! How a request is read: its path, query and body, each refused in the same words.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_core::{RegisterKey, ResourceName, SessionId};
use tenure_wire::{ApiError, Code, json};

use super::error::{Refused, no_such_call};
use super::path;
use crate::front::{Api, too_large};

/// What the path names below its place, as it is written there.
pub(crate) struct Written(String);

impl Written {
    /// The name and the verb behind it.
    fn split(&self) -> (&str, Option<&str>) {
        path::split(&self.0)
    }

    /// What follows the last colon; the empty text if nothing does.
    pub fn verb(&self) -> &str {
        self.split().1.unwrap_or_default()
    }

    /// A call that has no verb must not be given one.
    pub fn no_verb(&self) -> Result<(), ApiError> {
        match self.split().1 {
            None => Ok(()),
            Some(verb) => Err(no_such_call(&format!("the verb `{verb}`"))),
        }
    }

    pub fn resource(&self) -> Result<ResourceName, ApiError> {
        Ok(path::text(self.split().0)?.parse()?)
    }

    pub fn key(&self) -> Result<RegisterKey, ApiError> {
        Ok(RegisterKey::try_from(path::bytes(self.split().0).as_slice())?)
    }

    pub fn session(&self) -> Result<SessionId, ApiError> {
        Ok(path::text(self.split().0)?.parse()?)
    }

    /// The number of a probe: 128 bits as 32 hexadecimal digits.
    pub fn probe(&self) -> Result<u128, ApiError> {
        let digits = Some(self.0.as_str()).filter(|text| text.len() == 32 && !text.starts_with('+'));
        let number = digits.and_then(|text| u128::from_str_radix(text, 16).ok());
        number.ok_or_else(|| ApiError::invalid("a probe's number has 32 hexadecimal digits"))
    }
}

impl<S: Sync> FromRequestParts<S> for Written {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        // All routes with a name are `/v1/{place}/{name}`; the name is taken undecoded, because a verb is
        // looked for before anything is decoded.
        let written = parts.uri.path().splitn(4, '/').nth(3).unwrap_or_default();
        Ok(Written(written.to_owned()))
    }
}

/// A body or an answer in which there is nothing to say.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// The query of a request.
pub(crate) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Asked(query)),
            Err(error) => Err(Refused(
                ApiError::invalid(format!("the query cannot be read: {}", error.body_text()))
                    .hint("GET /openapi.json describes every query"),
            )),
        }
    }
}

/// The body of a request, read as JSON whatever its content type says.
pub(crate) struct Given<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Given<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Refused> {
        Ok(Given(read(request, api).await?))
    }
}

/// Reads a body, for handlers that learn only from the verb what it should be.
pub(crate) async fn read<T: DeserializeOwned>(request: Request, api: &Api) -> Result<T, ApiError> {
    // A length that is too large is refused before anything is read.
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > api.body_bytes_max() as u64) {
        return Err(too_large(api.body_bytes_max()));
    }
    let body = request.into_body().collect().await.map_err(unreadable)?;
    json::parse(&body.to_bytes())
}

/// Why a body could not be read: in the words of whoever stopped it, or the connection's.
fn unreadable(error: axum::Error) -> ApiError {
    match error.into_inner().downcast::<ApiError>() {
        Ok(refused) => *refused,
        Err(other) => {
            let mut cause: &dyn std::error::Error = &*other;
            while let Some(deeper) = cause.source() {
                if let Some(refused) = deeper.downcast_ref::<ApiError>() {
                    return refused.clone();
                }
                cause = deeper;
            }
            ApiError::new(Code::InvalidBody, "the body could not be read to its end")
        }
    }
}
