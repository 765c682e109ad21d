//! The dashboard: the files of `web/`, built into the binary. It reads the public interface and nothing else, so this
//! is only a list of files, what kind each is, and what a browser may do with them.

use std::sync::Arc;

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use super::Refused;
use super::error::no_such_call;
use super::request::HttpRequest;
use crate::context::CallContext;
use crate::front::Api;

/// Nothing but this server's own pages, scripts, styles and data; nothing inline; nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! file {
    ($path:literal, $name:literal, $kind:expr) => {
        ($path, $kind, include_str!(concat!("../../../../web/", $name)))
    };
}

/// Every file: its path, its kind, its content.
const FILES: &[(&str, &str, &str)] = &[
    file!("/", "index.html", HTML),
    file!("/web/style.css", "style.css", STYLE),
    file!("/web/icon.svg", "icon.svg", PICTURE),
    file!("/web/app.js", "app.js", SCRIPT),
    file!("/web/api.js", "api.js", SCRIPT),
    file!("/web/dom.js", "dom.js", SCRIPT),
    file!("/web/draw.js", "draw.js", SCRIPT),
    file!("/web/logic/credential.js", "logic/credential.js", SCRIPT),
    file!("/web/logic/stream.js", "logic/stream.js", SCRIPT),
    file!("/web/logic/words.js", "logic/words.js", SCRIPT),
    file!("/web/logic/metrics.js", "logic/metrics.js", SCRIPT),
    file!("/web/logic/leases.js", "logic/leases.js", SCRIPT),
    file!("/web/logic/timeline.js", "logic/timeline.js", SCRIPT),
    file!("/web/logic/incident.js", "logic/incident.js", SCRIPT),
    file!("/web/logic/timing.js", "logic/timing.js", SCRIPT),
    file!("/web/views/cluster.js", "views/cluster.js", SCRIPT),
    file!("/web/views/leases.js", "views/leases.js", SCRIPT),
    file!("/web/views/resource.js", "views/resource.js", SCRIPT),
    file!("/web/views/incident.js", "views/incident.js", SCRIPT),
    file!("/web/views/signin.js", "views/signin.js", SCRIPT),
    file!("/web/views/tuner.js", "views/tuner.js", SCRIPT),
];

/// The file at this path.
pub(crate) async fn file(_: Arc<Api>, _: CallContext, request: HttpRequest) -> Result<Response, Refused> {
    let file = FILES.iter().find(|(path, ..)| *path == request.path());
    let (_, kind, content) = file.ok_or_else(|| no_such_call(request.path()))?;
    Ok(page(kind, content))
}

fn page(kind: &'static str, content: &'static str) -> Response {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, content).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// A file that is in the folder and not in the list would work in nobody's browser.
    #[test]
    fn every_file_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
        let mut folders = vec![root.clone()];
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    // The tests of the scripts are not for users.
                    if entry.file_name().is_some_and(|name| name != "tests") {
                        folders.push(entry);
                    }
                } else {
                    found.insert(format!("/web/{}", entry.strip_prefix(&root).unwrap().display()));
                }
            }
        }
        let served: BTreeSet<String> = FILES
            .iter()
            .map(|(path, ..)| path.replace("/web/", "/").trim_start_matches('/').to_owned())
            .collect();
        let served: BTreeSet<String> = served
            .iter()
            .map(|name| format!("/web/{}", if name.is_empty() { "index.html" } else { name }))
            .collect();
        assert_eq!(found, served);
    }

    /// The policy forbids what is inline, and this is who would notice it before a browser does.
    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, kind, content) in FILES {
            // The name of the SVG vocabulary is a name, not an address that anybody calls.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for foreign in ["http://", "https://", "@import", "eval(", "innerHTML", " style=\"", " onclick="]
            {
                assert!(!content.contains(foreign), "{path} contains {foreign}");
            }
            if *kind == HTML {
                assert!(!content.contains("<style") && !content.contains("<script>"), "{path}");
            }
        }
    }
}
