//! From a method and a path to a row of the table: the routing of both surfaces, read from the rows at the start.
//!
//! A path names a thing and a verb: `/v1/leases/settlement/cron:acquire`. The verb is what follows the last `:` of the
//! last segment; a resource's slashes stay slashes; a literal colon in the last segment is written `%3A`. So the verb
//! is looked for before anything is decoded.

use hashbrown::HashMap;

use super::{BindingKind, CallRow, GrpcBinding, HttpBinding};

/// In this order a refusal lists the methods of a path.
const METHODS: [&str; 4] = ["GET", "PUT", "POST", "DELETE"];

/// Where every call is reached.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Paths that name nothing.
    whole: HashMap<&'static str, Place>,
    /// Paths that name something, by what comes before the name.
    named: Vec<(&'static str, Place)>,
    grpc: HashMap<&'static str, (&'static CallRow, &'static GrpcBinding)>,
    grpc_services: HashMap<&'static str, &'static CallRow>,
}

/// Everything at one path, or below one.
#[derive(Debug, Default)]
struct Place {
    /// Whether the name may have slashes.
    rest_of_path: bool,
    bindings: Vec<At>,
}

#[derive(Debug)]
struct At {
    verb: Option<&'static str>,
    row: &'static CallRow,
    binding: &'static HttpBinding,
}

/// A call of the HTTP surface, found.
#[derive(Debug)]
pub(crate) struct HttpMatch<'p> {
    pub row: &'static CallRow,
    pub binding: &'static HttpBinding,
    /// What the path names, as it is written there: not decoded.
    pub name: Option<&'p str>,
}

impl<'p> HttpMatch<'p> {
    /// What the path names, for logs. A session's id is a secret, and is never shown.
    pub fn shown_name(&self) -> &'p str {
        if self.binding.pattern.contains("{session}") { "…" } else { self.name.unwrap_or_default() }
    }
}

/// Why there is no call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Nothing is there: the path, or the verb in it.
    NoSuchCall(String),
    /// Something is there, with these methods.
    WrongMethod(String),
}

impl Routes {
    /// The routes of these tables. Panics if two rows have one path, or a pattern is no pattern: the tables are fixed
    /// when the program is built, and every test starts here.
    pub fn new(tables: &[&'static [CallRow]]) -> Routes {
        let mut routes = Routes::default();
        for row in tables.iter().copied().flatten() {
            for binding in row.bindings {
                match &binding.0 {
                    BindingKind::Http(binding) => routes.add_http(row, binding),
                    BindingKind::Grpc(binding) => {
                        let before = routes.grpc.insert(binding.path, (row, binding));
                        assert!(before.is_none(), "two rows have {}", binding.path);
                    }
                    BindingKind::GrpcService(name) => {
                        let before = routes.grpc_services.insert(name, row);
                        assert!(before.is_none(), "two rows have {name}");
                    }
                }
            }
        }
        routes
    }

    fn add_http(&mut self, row: &'static CallRow, binding: &'static HttpBinding) {
        let pattern = binding.pattern;
        assert!(METHODS.contains(&binding.method), "{} is no method that we serve", binding.method);
        let (place, verb) = match pattern.split_once('{') {
            None => (self.whole.entry(pattern).or_default(), None),
            Some((before, name)) => {
                let (name, after) = name.split_once('}').expect("a name ends with a brace");
                let verb = after.strip_prefix(':');
                assert!(verb.is_some() || after.is_empty(), "{pattern}: only a verb may follow a name");
                let at = self.named.iter().position(|(prefix, _)| *prefix == before);
                let at = at.unwrap_or_else(|| {
                    self.named.push((before, Place::default()));
                    self.named.len() - 1
                });
                let place = &mut self.named[at].1;
                place.rest_of_path = name.starts_with('*');
                (place, verb)
            }
        };
        assert!(place.find(verb, binding.method).is_none(), "two rows have {} {pattern}", binding.method);
        place.bindings.push(At { verb, row, binding });
    }

    /// The call at this path of the HTTP surface.
    pub fn http<'p>(&self, method: &str, path: &'p str) -> Result<HttpMatch<'p>, Missing> {
        // HEAD is a GET whose body is left out.
        let method = if method == "HEAD" { "GET" } else { method };
        if let Some(place) = self.whole.get(path) {
            return match place.find(None, method) {
                Some(At { row, binding, .. }) => Ok(HttpMatch { row, binding, name: None }),
                None => Err(Missing::WrongMethod(place.methods(None))),
            };
        }
        let nothing_here = || Missing::NoSuchCall(path.to_owned());
        let named = self.named.iter().find_map(|(prefix, place)| Some((path.strip_prefix(prefix)?, place)));
        let (written, place) = named.filter(|(written, _)| !written.is_empty()).ok_or_else(nothing_here)?;
        let (name, verb) = split(written);
        if !place.rest_of_path && name.contains('/') {
            return Err(nothing_here());
        }
        if let Some(At { row, binding, .. }) = place.find(verb, method) {
            return Ok(HttpMatch { row, binding, name: Some(name) });
        }
        let methods = place.methods(verb);
        if methods.is_empty() || place.bindings.iter().any(|at| at.binding.method == method) {
            return Err(Missing::NoSuchCall(format!("the verb `{}` of {path}", verb.unwrap_or_default())));
        }
        Err(Missing::WrongMethod(methods))
    }

    /// The call at this path of the gRPC surface; without a binding if the service is not ours.
    pub fn grpc(&self, path: &str) -> Option<(&'static CallRow, Option<&'static GrpcBinding>)> {
        if let Some((row, binding)) = self.grpc.get(path) {
            return Some((row, Some(binding)));
        }
        let service = path.strip_prefix('/')?.split('/').next()?;
        self.grpc_services.get(service).map(|row| (*row, None))
    }
}

impl Place {
    fn find(&self, verb: Option<&str>, method: &str) -> Option<&At> {
        self.bindings.iter().find(|at| at.verb == verb && at.binding.method == method)
    }

    /// The methods of a path, as the header `Allow` lists them.
    fn methods(&self, verb: Option<&str>) -> String {
        let there = |method: &&str| self.find(verb, method).is_some();
        let listed = |method| if method == "GET" { "GET,HEAD" } else { method };
        METHODS.into_iter().filter(there).map(listed).collect::<Vec<_>>().join(",")
    }
}

/// A name as the path writes it, and the verb behind it, if there is one.
fn split(written: &str) -> (&str, Option<&str>) {
    match written.rfind(':') {
        Some(colon) if !written[colon..].contains('/') => (&written[..colon], Some(&written[colon + 1..])),
        _ => (written, None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Call;
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
    }

    #[test]
    fn a_path_leads_to_one_call_whatever_it_names() {
        let routes = Routes::new(&[Call::rows()]);
        for (method, path, label, name) in [
            ("POST", "/v1/leases/a/b:acquire", "leases.acquire", Some("a/b")),
            ("POST", "/v1/leases/:acquire", "leases.acquire", Some("")),
            ("POST", "/v1/leases:acquire", "leases.acquire", None),
            ("GET", "/v1/leases/a:b/c", "leases.get", Some("a:b/c")),
            ("HEAD", "/v1/leases/a", "leases.get", Some("a")),
            ("POST", "/v1/sessions/7-ab:renew", "sessions.renew", Some("7-ab")),
            ("POST", "/v1/session:renew", "sessions.renew", None),
            ("POST", "/v1/sessions:renew", "sessions.renew", None),
            ("PUT", "/v1/registers/a/b", "registers.write", Some("a/b")),
            ("POST", "/v1/leases/a:kind", "cluster.set_kind", Some("a")),
            ("GET", "/metrics", "page", None),
            ("GET", "/web/logic/words.js", "page", Some("logic/words.js")),
        ] {
            let found = routes.http(method, path).unwrap_or_else(|why| panic!("{method} {path}: {why:?}"));
            assert_eq!((found.row.label(), found.name), (label, name), "{method} {path}");
        }
        let nothing = |method, path| match routes.http(method, path) {
            Err(Missing::NoSuchCall(_)) => true,
            found => panic!("{method} {path}: {found:?}"),
        };
        assert!(
            nothing("GET", "/nowhere") && nothing("GET", "/v1/leases/") && nothing("POST", "/v1/leases/a")
        );
        assert!(nothing("GET", "/v1/sessions/a/b") && nothing("POST", "/v1/leases/a:shout"));
        assert!(nothing("GET", "/v1/leases/a:acquire") && nothing("PATCH", "/v1/leases/a:shout"));
        for (method, path, allowed) in [
            ("PATCH", "/v1/leases/a", "GET,HEAD"),
            ("POST", "/v1/history/a", "GET,HEAD"),
            ("PATCH", "/v1/leases/a:acquire", "POST"),
            ("PATCH", "/v1/sessions", "GET,HEAD,POST"),
            ("PATCH", "/v1/registers/a", "GET,HEAD,PUT,DELETE"),
        ] {
            let refused = routes.http(method, path).err();
            assert_eq!(refused, Some(Missing::WrongMethod(allowed.into())), "{method} {path}");
        }
    }

    #[test]
    fn a_session_in_a_path_is_never_shown() {
        let routes = Routes::new(&[Call::rows()]);
        let shown = |method, path| routes.http(method, path).unwrap().shown_name().to_owned();
        assert_eq!(shown("POST", "/v1/sessions/7-5ec2e7:renew"), "…");
        assert_eq!(shown("GET", "/v1/sessions/7-5ec2e7"), "…");
        assert_eq!(shown("GET", "/v1/leases/a/b"), "a/b");
    }
}
