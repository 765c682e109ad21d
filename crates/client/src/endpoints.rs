//! Where the store is: a list of endpoints, checked once. Any one of them is enough to reach the cluster,
//! because followers forward; the others are for the case that it is down. One of them may be the host's
//! agent, behind a Unix socket: it is tried first and is never required.

use tenure_tls::ClientTls;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::credential::Credential;

/// The port of an endpoint that names none.
pub const DEFAULT_PORT: u16 = 7400;

/// One address at which clients reach the store: a node, such as `10.0.0.7:7400` or `tenure-1:7400`, or the
/// agent of this host, such as `unix:/run/tenure.sock`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(Place);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Node { host: String, port: u16 },
    Socket(PathBuf),
}

impl Endpoint {
    /// The agent that listens at this path.
    pub fn agent(path: impl Into<PathBuf>) -> Endpoint {
        Endpoint(Place::Socket(path.into()))
    }

    /// The address as a URI, for whoever connects to it.
    pub fn uri(&self) -> String {
        match &self.0 {
            Place::Node { .. } => format!("http://{self}"),
            Place::Socket(_) => self.to_string(),
        }
    }

    /// Whether it is this very machine, for everybody who reads it.
    pub(crate) fn is_loopback(&self) -> bool {
        let named = matches!(&self.0, Place::Node { host, .. } if host.eq_ignore_ascii_case("localhost"));
        named || self.ip().is_some_and(|ip| ip.to_canonical().is_loopback())
    }

    /// Whether it names no address in particular, as what a node listens at may.
    pub(crate) fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.to_canonical().is_unspecified())
    }

    fn ip(&self) -> Option<std::net::IpAddr> {
        match &self.0 {
            Place::Node { host, .. } => host.trim_start_matches('[').trim_end_matches(']').parse().ok(),
            Place::Socket(_) => None,
        }
    }

    /// The path, if this is a socket on this host.
    pub fn socket(&self) -> Option<&Path> {
        match &self.0 {
            Place::Node { .. } => None,
            Place::Socket(path) => Some(path),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Node { host, port } => write!(f, "{host}:{port}"),
            Place::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A text that names no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an endpoint: {why}; write host:port, such as 127.0.0.1:{DEFAULT_PORT}")]
pub struct InvalidEndpoint {
    text: String,
    why: &'static str,
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let invalid = |why| InvalidEndpoint { text: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(invalid("a socket is named by its whole path"));
            }
            if path.contains(char::is_control) {
                return Err(invalid("the path has a control character"));
            }
            return Ok(Endpoint::agent(path));
        }
        let rest = match text.split_once("://") {
            None => text,
            Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(("https", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(_) => return Err(invalid("only https:// and http:// are known")),
        };
        // An IPv6 address stands in brackets, so a colon behind the last bracket can only begin a port.
        let after_bracket = rest.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match rest[after_bracket..].rfind(':') {
            None => (rest, DEFAULT_PORT),
            Some(at) => {
                let (host, port) = rest.split_at(after_bracket + at);
                (host, port[1..].parse().map_err(|_| invalid("the port is no number below 65536"))?)
            }
        };
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        if port == 0 {
            return Err(invalid("nobody can be reached at port 0"));
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@".contains(c)) {
            return Err(invalid("the host has a character that no host has"));
        }
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match in_brackets {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_err() => {
                return Err(invalid("what stands in brackets is no IPv6 address"));
            }
            None if host.contains([':', '[', ']']) => {
                return Err(invalid("an IPv6 address stands in brackets"));
            }
            _ => {}
        }
        Ok(Endpoint(Place::Node { host: host.to_owned(), port }))
    }
}

/// At least one endpoint, in the order in which they are tried, whether they are reached over TLS, and what is presented
/// there. Written with commas in between, and without the credential.
#[derive(Clone, Debug)]
pub struct Endpoints {
    list: Vec<Endpoint>,
    /// Written with `https://`.
    https: bool,
    tls: Option<ClientTls>,
    credential: Option<Credential>,
}

impl PartialEq for Endpoints {
    /// The same places, reached in the same way, by the same caller.
    fn eq(&self, other: &Self) -> bool {
        let alike = self.list == other.list && self.is_secured() == other.is_secured();
        alike && self.credential == other.credential
    }
}

impl Eq for Endpoints {}

impl Endpoints {
    fn of(list: Vec<Endpoint>) -> Endpoints {
        Endpoints { list, https: false, tls: None, credential: None }
    }

    /// The endpoints, in order.
    pub fn as_slice(&self) -> &[Endpoint] {
        &self.list
    }

    /// The same store, with this credential presented in every call.
    #[must_use]
    pub fn with_credential(self, credential: Credential) -> Endpoints {
        Endpoints { credential: Some(credential), ..self }
    }

    /// What is presented in every call.
    pub fn credential(&self) -> Option<&Credential> {
        self.credential.as_ref()
    }

    /// The same nodes, reached over TLS. An agent on this host is reached as before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_client::{ClientTls, ClientTlsOptions, Endpoints};
    /// # let now = tenure_clock::Clock::wall(&tenure_clock::SystemClock);
    /// # let ca = tenure_tls::Root::generate(now)?;
    ///
    /// let options = ClientTlsOptions::default().authorities_text(ca.as_bytes())?;
    /// let tls = ClientTls::new(options, std::sync::Arc::new(tenure_clock::SystemClock))?;
    /// let endpoints = "db-1:7400,db-2:7400".parse::<Endpoints>()?.secured(tls);
    /// assert_eq!(endpoints.to_string(), "https://db-1:7400,https://db-2:7400");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn secured(mut self, tls: ClientTls) -> Endpoints {
        self.tls = Some(tls);
        self
    }

    /// Whether nodes are to be reached over TLS.
    pub fn is_secured(&self) -> bool {
        self.https || self.tls.is_some()
    }

    /// How TLS is spoken; none if nobody has said whom to believe.
    pub fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    /// One of them alone, reached in the same way.
    #[must_use]
    pub fn only(&self, endpoint: &Endpoint) -> Endpoints {
        Endpoints { list: vec![endpoint.clone()], ..self.clone() }
    }

    /// The same store, asked through this agent first. Whatever the agent leaves unanswered goes to the
    /// others.
    pub fn through(&self, agent: Endpoint) -> Endpoints {
        let others = self.list.iter().filter(|endpoint| **endpoint != agent).cloned();
        Endpoints { list: std::iter::once(agent.clone()).chain(others).collect(), ..self.clone() }
    }
}

impl Default for Endpoints {
    /// A node on this machine that was started without options.
    fn default() -> Self {
        Endpoints::of(vec![Endpoint(Place::Node { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT })])
    }
}

impl FromStr for Endpoints {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let (mut https, mut http) = (false, false);
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let endpoint: Endpoint = one.parse()?;
            https |= one.starts_with("https://");
            http |= one.starts_with("http://");
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        if endpoints.is_empty() {
            return Err(InvalidEndpoint { text: text.to_owned(), why: "it is empty" });
        }
        if https && http {
            let why = "all nodes are reached over TLS, or none";
            return Err(InvalidEndpoint { text: text.to_owned(), why });
        }
        Ok(Endpoints { https, ..Endpoints::of(endpoints) })
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, endpoint) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            if self.is_secured() && endpoint.socket().is_none() {
                f.write_str("https://")?;
            }
            fmt::Display::fmt(endpoint, f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        for (text, read) in [
            ("127.0.0.1:7400", "127.0.0.1:7400"),
            ("node-1", "node-1:7400"),
            ("http://node-1:80/", "node-1:80"),
            ("[::1]:7400", "[::1]:7400"),
            ("[::1]", "[::1]:7400"),
            (" a:1 , b:2,,a:1", "a:1,b:2"),
            ("unix:/run/tenure.sock,a:1", "unix:/run/tenure.sock,a:1"),
            ("unix:///run/tenure.sock", "unix:/run/tenure.sock"),
            ("https://node-1,node-2:80", "https://node-1:7400,https://node-2:80"),
        ] {
            assert_eq!(text.parse::<Endpoints>().map(|endpoints| endpoints.to_string()), Ok(read.to_owned()));
        }
    }

    #[test]
    fn an_agent_is_asked_first_and_once() {
        let nodes: Endpoints = "a:1,unix:/s,b:2".parse().expect("endpoints");
        assert_eq!(nodes.through(Endpoint::agent("/s")).to_string(), "unix:/s,a:1,b:2");
        assert_eq!(nodes.as_slice()[1].socket(), Some(Path::new("/s")));
        assert_eq!(nodes.as_slice()[0].socket(), None);
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "empty"),
            (",", "empty"),
            (":7400", "host is missing"),
            ("a:70000", "no number below"),
            ("a:0", "port 0"),
            ("a:b:1", "brackets"),
            ("::1", "brackets"),
            ("[x]:1", "no IPv6"),
            ("https://a,http://b", "over TLS, or none"),
            ("ftp://a", "http://"),
            ("unix:run/tenure.sock", "whole path"),
            ("a b:1", "no host has"),
            ("a/b:1", "no host has"),
        ] {
            let refused = text.parse::<Endpoints>().expect_err(text).to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
