//! How a request is read: its path, query, header and body, each refused with the same error.

use axum::body::Body;
use axum::extract::Query;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use http_body_util::BodyExt;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tenure_core::{InvalidName, RegisterKey, ResourceName, SessionId};
use tenure_wire::{ApiError, Code, json};

use crate::front::{Api, too_large};

/// Where a request names the session that it is from, so that the id, a secret, is in no path.
pub(crate) const SESSION_HEADER: &str = "tenure-session";

/// A request of the HTTP surface, whose call has been found.
pub(crate) struct HttpRequest {
    uri: Uri,
    headers: HeaderMap,
    body: Body,
    /// What the path names, as it is written there: not decoded.
    name: String,
}

impl HttpRequest {
    pub fn new(parts: Parts, body: Body, name: Option<String>) -> HttpRequest {
        HttpRequest { uri: parts.uri, headers: parts.headers, body, name: name.unwrap_or_default() }
    }

    /// The path, as it is written.
    pub fn path(&self) -> &str {
        self.uri.path()
    }

    /// A header field, as text.
    pub fn header(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes());
        text.map(Some).map_err(|_| ApiError::invalid(format!("the header {name} is not UTF-8")))
    }

    /// The resource that the path names.
    pub fn resource(&self) -> Result<ResourceName, ApiError> {
        Ok(text(&self.name)?.parse()?)
    }

    /// The register that the path names.
    pub fn key(&self) -> Result<RegisterKey, ApiError> {
        Ok(RegisterKey::try_from(bytes(&self.name).as_slice())?)
    }

    /// The policy or credential that the path names.
    pub fn named<T: std::str::FromStr<Err = InvalidName>>(&self) -> Result<T, ApiError> {
        Ok(text(&self.name)?.parse()?)
    }

    /// The session that the request is from: the header names it, or, in a deprecated path, the path.
    pub fn session(&self) -> Result<SessionId, ApiError> {
        if !self.name.is_empty() {
            return Ok(text(&self.name)?.parse()?);
        }
        let named = self.header(SESSION_HEADER)?.ok_or_else(|| {
            ApiError::new(Code::InvalidSession, "the header Tenure-Session is missing").hint(
                "send `Tenure-Session:` with the session's whole id, as it was answered to whoever opened it",
            )
        })?;
        Ok(named.parse()?)
    }

    /// The number of a probe: 128 bits as 32 hexadecimal digits.
    pub fn probe(&self) -> Result<u128, ApiError> {
        let digits = Some(self.name.as_str()).filter(|text| text.len() == 32 && !text.starts_with('+'));
        let number = digits.and_then(|text| u128::from_str_radix(text, 16).ok());
        number.ok_or_else(|| ApiError::invalid("a probe's number has 32 hexadecimal digits"))
    }

    /// The query.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        match Query::<T>::try_from_uri(&self.uri) {
            Ok(Query(query)) => Ok(query),
            Err(error) => Err(ApiError::invalid(format!("the query cannot be read: {}", error.body_text()))
                .hint("GET /openapi.json describes every query")),
        }
    }

    /// The body, read as JSON whatever its content type says.
    pub async fn body<T: DeserializeOwned>(&mut self, api: &Api) -> Result<T, ApiError> {
        // A length that is too large is refused before anything is read.
        let length = self.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > api.body_bytes_max() as u64) {
            return Err(too_large(api.body_bytes_max()));
        }
        let body = std::mem::take(&mut self.body).collect().await.map_err(unreadable)?;
        json::parse(&body.to_bytes())
    }

    /// A body that names the session that it is from, unless the header does.
    pub async fn body_of_session<T>(&mut self, api: &Api) -> Result<T, ApiError>
    where
        T: DeserializeOwned + json::OfSession,
    {
        let mut body: T = self.body(api).await?;
        if let Some(named) = self.header(SESSION_HEADER)? {
            match body.session() {
                Some(session) if session != named => {
                    return Err(ApiError::invalid("the header and the body name two different sessions")
                        .hint("name the session in the header Tenure-Session only"));
                }
                session => *session = Some(named.to_owned()),
            }
        }
        Ok(body)
    }
}

/// A part of a path as text.
fn text(written: &str) -> Result<String, ApiError> {
    String::from_utf8(bytes(written)).map_err(|_| {
        ApiError::new(Code::InvalidName, "the name in the path is not UTF-8").hint(
            "write it in UTF-8, with `%` and two hexadecimal digits for each byte that a path does not allow",
        )
    })
}

/// A part of a path as bytes.
fn bytes(written: &str) -> Vec<u8> {
    percent_decode_str(written).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_after_the_verb_was_found() {
        assert_eq!(text("a%3Ab%2Fc").unwrap(), "a:b/c");
        assert_eq!(text("%FF").unwrap_err().code, Code::InvalidName);
        assert_eq!(bytes("%FF%00x"), [0xff, 0, b'x']);
    }
}
