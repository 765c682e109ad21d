//! How a path names a thing and a verb: `/v1/leases/settlement/cron:acquire`.
//!
//! The verb is what follows the last `:` of the last segment; a resource's slashes stay slashes; a literal
//! colon in the last segment is written `%3A`. So the verb is looked for before anything is decoded.

use axum::http::Method;
use percent_encoding::percent_decode_str;
use tenure_wire::{ApiError, Code};

/// A name as the path writes it, and the verb behind it, if there is one.
pub(crate) fn split(written: &str) -> (&str, Option<&str>) {
    match written.rfind(':') {
        Some(colon) if !written[colon..].contains('/') => (&written[..colon], Some(&written[colon + 1..])),
        _ => (written, None),
    }
}

/// A part of a path as text.
pub(crate) fn text(written: &str) -> Result<String, ApiError> {
    String::from_utf8(bytes(written)).map_err(|_| {
        ApiError::new(Code::InvalidName, "the name in the path is not UTF-8").hint(
            "write it in UTF-8, with `%` and two hexadecimal digits for each byte that a path does not allow",
        )
    })
}

/// A part of a path as bytes.
pub(crate) fn bytes(written: &str) -> Vec<u8> {
    percent_decode_str(written).collect()
}

/// The methods of a path that names something: its route also takes the verbs, which the path alone does not show.
pub(crate) fn methods(path: &str) -> Option<&'static str> {
    let (place, rest) = path.strip_prefix("/v1/")?.split_once('/')?;
    Some(match (place, split(rest).1) {
        (_, Some(_)) => "POST",
        ("sessions", None) => "GET,HEAD,DELETE",
        ("leases" | "fences", None) => "GET,HEAD",
        ("registers", None) => "GET,HEAD,PUT,DELETE",
        _ => return None,
    })
}

/// What a call is named in metrics and logs: the same word for the same thing on HTTP and gRPC.
pub(crate) fn call(method: &Method, path: &str) -> &'static str {
    let (place, rest) = match path.strip_prefix("/v1/").and_then(|path| path.split_once('/')) {
        Some((place, rest)) => (place, Some(rest)),
        None => (path.strip_prefix("/v1/").unwrap_or(path), None),
    };
    let verb = rest.and_then(|rest| split(rest).1);
    match (method.as_str(), place, rest, verb) {
        ("POST", "sessions", None, _) => "sessions.open",
        ("GET", "sessions", None, _) => "sessions.list",
        ("POST", "sessions:renew", None, _) | ("POST", "sessions", _, Some("renew")) => "sessions.renew",
        ("DELETE", "sessions", Some(_), None) => "sessions.close",
        ("GET", "sessions", Some(_), None) => "sessions.get",
        ("POST", "sessions", _, Some("seen")) => "sessions.seen",
        ("POST", "sessions", _, Some("paused")) => "sessions.report_pause",
        ("GET", "leases", None, _) => "leases.list",
        ("GET", "leases", Some(_), None) => "leases.get",
        ("POST", "leases:acquire", None, _) | ("POST", "leases", _, Some("acquire")) => "leases.acquire",
        ("POST", "leases", _, Some("release")) => "leases.release",
        ("POST", "leases", _, Some("transfer")) => "leases.transfer",
        ("POST", "leases", _, Some("revoke")) => "leases.revoke",
        ("POST", "leases:cancel", None, _) | ("POST", "leases", _, Some("cancel")) => "leases.cancel",
        ("POST", "leases", _, Some("barrier")) => "leases.barrier",
        ("GET", "history", _, None) => "leases.history",
        ("GET", "events", None, _) => "watch.events",
        ("GET", "watch", None, _) => "watch.watch",
        ("GET", "registers", None, _) => "registers.list",
        ("GET", "registers", Some(_), None) => "registers.get",
        ("PUT" | "DELETE", "registers", Some(_), None) | ("POST", "registers:write", None, _) => {
            "registers.write"
        }
        ("GET", "fences", Some(_), None) => "fences.list",
        ("POST", "fences", _, Some("arm")) => "fences.arm",
        ("POST", "fences", _, Some("refused")) => "fences.report_refused",
        ("POST", "sequencers", None, _) => "sequencers.issue",
        ("POST", "sequencers:check", None, _) => "sequencers.check",
        ("POST", "sequencers:rotate", None, _) => "sequencers.rotate",
        ("POST", "sequencers:withdraw", None, _) => "sequencers.withdraw",
        ("GET", "cluster", None, _) => "cluster.status",
        ("POST", "probe", Some(_), None) => "probe",
        (
            "GET" | "HEAD",
            "/metrics" | "/healthz" | "/readyz" | "/openapi.json" | "/.well-known/jwks.json" | "/",
            None,
            _,
        ) => "page",
        ("GET" | "HEAD", place, None, _) if place.starts_with("/web/") => "page",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_is_what_follows_the_last_colon_of_the_last_segment() {
        for (written, name, verb) in [
            ("settlement/cron:acquire", "settlement/cron", Some("acquire")),
            ("a:b:release", "a:b", Some("release")),
            ("a:b/c", "a:b/c", None),
            ("a:b/c:acquire", "a:b/c", Some("acquire")),
            ("a%3Ab", "a%3Ab", None),
            (":acquire", "", Some("acquire")),
            ("a:", "a", Some("")),
            ("a//b:acquire", "a//b", Some("acquire")),
        ] {
            assert_eq!(split(written), (name, verb), "{written}");
        }
        assert_eq!(text("a%3Ab%2Fc").unwrap(), "a:b/c");
        assert_eq!(text("%FF").unwrap_err().code, Code::InvalidName);
        assert_eq!(bytes("%FF%00x"), [0xff, 0, b'x']);
    }

    #[test]
    fn a_call_has_one_name_whatever_it_names() {
        for (method, path, name) in [
            (Method::POST, "/v1/leases/a/b:acquire", "leases.acquire"),
            (Method::POST, "/v1/leases:acquire", "leases.acquire"),
            (Method::GET, "/v1/leases/a:b/c", "leases.get"),
            (Method::POST, "/v1/sessions/7-ab:renew", "sessions.renew"),
            (Method::POST, "/v1/sessions:renew", "sessions.renew"),
            (Method::PUT, "/v1/registers/a/b", "registers.write"),
            (Method::GET, "/metrics", "page"),
            (Method::GET, "/nowhere", "other"),
            (Method::PATCH, "/v1/leases/a", "other"),
        ] {
            assert_eq!(call(&method, path), name, "{method} {path}");
        }
    }
}
