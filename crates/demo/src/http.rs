//! A minimal HTTP/JSON client: what a script with `curl` does, over one persistent connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take. Generous: a demo on a busy machine is slow, not wrong.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A caller of one node.
pub struct Http {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Http {
    /// Connects at the first call.
    pub fn new(address: SocketAddr) -> Http {
        Http { address, connection: None }
    }

    /// Calls, and gives back status and body as text.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, String)> {
        self.call_as(None, method, path, body)
    }

    /// The same for the session with this id, which goes into a header and into no path: it is a secret.
    fn call_as(
        &mut self,
        session: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, String)> {
        let answer = self.attempt(session, method, path, body);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// A call that must succeed, with the body as JSON.
    pub fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Value> {
        self.ask_as(None, method, path, body)
    }

    /// A call of the session with this id that must succeed.
    pub fn ask_as(
        &mut self,
        session: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Value> {
        let (status, text) = self.call_as(session, method, path, body)?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status != 200 {
            let why = value["error"]["message"].as_str().unwrap_or(&text).to_owned();
            return Err(io::Error::other(format!("{method} {path} was answered with {status}: {why}")));
        }
        Ok(value)
    }

    /// The value of a metric without labels.
    pub fn metric(&mut self, name: &str) -> io::Result<f64> {
        let (_, page) = self.call("GET", "/metrics", None)?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("the node exports no {name}")))
    }

    fn attempt(
        &mut self,
        session: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, String)> {
        if self.connection.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, ANSWER_WITHIN)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            self.connection = Some(BufReader::new(stream));
        }
        let connection = self.connection.as_mut().expect("it was just made");
        let body = body.map(Value::to_string).unwrap_or_default();
        let session = session.map(|id| format!("Tenure-Session: {id}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{session}Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes())?;
        read_answer(connection)
    }
}

fn read_answer(connection: &mut BufReader<TcpStream>) -> io::Result<(u16, String)> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer");
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(malformed)?;
    let mut length = 0;
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(|_| malformed())?;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
