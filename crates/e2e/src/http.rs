//! A plain HTTP/1.1 client for one connection at a time. Tests need to see the seam between "sent" and
//! "answered": a call that failed says whether it can have been applied, and a test can throw an answer
//! away or never read it. Ordinary clients hide exactly that.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::sse::EventStream;

/// A call that got no answer.
#[derive(Debug)]
pub enum CallFailed {
    /// No connection: certainly not applied.
    NotSent(io::Error),
    /// Sent, wholly or in part: may have been applied.
    Unknown(io::Error),
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFailed::NotSent(error) => write!(f, "not sent: {error}"),
            CallFailed::Unknown(error) => write!(f, "sent, not answered: {error}"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as it came.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The stable code of an error, or nothing.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_string()
    }

    /// The body, if the status is this one; else a panic that shows the answer.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }
}

/// A caller with one connection, kept alive between calls and opened again when it is lost.
#[derive(Debug)]
pub struct Http {
    address: SocketAddr,
    limit: Duration,
    connection: Option<BufReader<TcpStream>>,
}

impl Http {
    /// A caller of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, limit: Duration::from_secs(30), connection: None }
    }

    /// Waits at most this long for any one byte.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// `GET`.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Reply {
        self.must("GET", path, None)
    }

    /// `POST` with a JSON body.
    #[track_caller]
    pub fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.must("POST", path, Some(body))
    }

    /// `PUT` with a JSON body.
    #[track_caller]
    pub fn put(&mut self, path: &str, body: &Value) -> Reply {
        self.must("PUT", path, Some(body))
    }

    /// `DELETE`, with a JSON body where one is given.
    #[track_caller]
    pub fn delete(&mut self, path: &str, body: Option<&Value>) -> Reply {
        self.must("DELETE", path, body)
    }

    #[track_caller]
    fn must(&mut self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// One call; what fails says whether it can have been applied.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Reply, CallFailed> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        self.raw(&request(self.address, None, method, path, bytes.as_deref()))
    }

    /// One call of the session with this id, which goes into a header: an id is a secret, and belongs into no path.
    pub fn call_as(
        &mut self,
        session: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Reply, CallFailed> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        self.raw(&request(self.address, Some(session), method, path, bytes.as_deref()))
    }

    /// The same, and it must be answered.
    #[track_caller]
    pub fn own(&mut self, session: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let answer = self.call_as(session, method, path, body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends bytes as they are and reads one answer.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<Reply, CallFailed> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(self.connect().map_err(CallFailed::NotSent)?),
        };
        // A server may answer before it has read everything (a body too large), so a failed write is told
        // only if there is no answer either.
        let sent = connection.get_mut().write_all(bytes);
        match read_reply(&mut connection) {
            Ok((reply, keep)) => {
                if keep && sent.is_ok() {
                    self.connection = Some(connection);
                }
                Ok(reply)
            }
            Err(error) => Err(CallFailed::Unknown(sent.err().unwrap_or(error))),
        }
    }

    /// Sends a call and hangs up without reading: the answer is lost, whether or not there was one.
    pub fn send_and_hang_up(&mut self, method: &str, path: &str, body: Option<&Value>) {
        drop(self.send(method, path, body));
    }

    /// Sends a call on a connection of its own and reads no answer: gives the connection, which ends when dropped.
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> TcpStream {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let mut connection = self.connect().expect("the server accepts connections");
        connection
            .write_all(&request(self.address, None, method, path, bytes.as_deref()))
            .expect("a short request fits the buffers");
        connection
    }

    /// Sends a call of a session and hangs up without reading.
    pub fn send_as_and_hang_up(&self, session: &str, method: &str, path: &str) {
        let mut connection = self.connect().expect("the server accepts connections");
        let bytes = request(self.address, Some(session), method, path, None);
        connection.write_all(&bytes).expect("a short request fits the buffers");
    }

    /// Opens a stream of server-sent events.
    #[track_caller]
    pub fn events(&self, path: &str, last_seen: Option<u64>) -> EventStream {
        let resume = last_seen.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        self.event_stream(path, &resume)
    }

    /// Opens the stream of one session's events.
    #[track_caller]
    pub fn session_events(&self, session: &str) -> EventStream {
        self.event_stream("/v1/sessions:events", &format!("Tenure-Session: {session}\r\n"))
    }

    #[track_caller]
    fn event_stream(&self, path: &str, header: &str) -> EventStream {
        let mut connection = BufReader::new(self.connect().expect("the server accepts connections"));
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n{header}\r\n",
            self.address
        );
        connection.get_mut().write_all(head.as_bytes()).expect("a short request fits the buffers");
        let (status, headers) = read_head(&mut connection).expect("the server answers a watch");
        assert_eq!(status, 200, "GET {path}");
        EventStream::new(Body::of(connection, &headers))
    }

    /// A bare connection to the server.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let connection = TcpStream::connect_timeout(&self.address, self.limit)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(self.limit))?;
        connection.set_write_timeout(Some(self.limit))?;
        Ok(connection)
    }
}

/// A request as bytes.
fn request(
    host: SocketAddr,
    session: Option<&str>,
    method: &str,
    path: &str,
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    if let Some(session) = session {
        bytes.extend(format!("Tenure-Session: {session}\r\n").bytes());
    }
    match body {
        Some(body) => {
            bytes.extend(
                format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len()).bytes(),
            );
            bytes.extend(body);
        }
        None if method == "GET" => bytes.extend(b"\r\n"),
        None => bytes.extend(b"Content-Length: 0\r\n\r\n"),
    }
    bytes
}

/// Any text as one segment of a path.
pub fn path_segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => segment.push(byte as char),
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

type Headers = Vec<(String, String)>;

fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn read_line(connection: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_string())
}

fn read_head(connection: &mut impl BufRead) -> io::Result<(u16, Headers)> {
    let line = read_line(connection)?;
    let status =
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| invalid("no status"))?;
    let mut headers = Headers::new();
    loop {
        let line = read_line(connection)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("no header"))?;
        headers.push((name.to_lowercase(), value.trim().to_string()));
    }
}

/// One answer, and whether the connection can serve another call.
fn read_reply(connection: &mut BufReader<TcpStream>) -> io::Result<(Reply, bool)> {
    let (mut status, mut headers) = read_head(connection)?;
    while status == 100 {
        (status, headers) = read_head(connection)?;
    }
    let mut body = Vec::new();
    let ends_with_connection = {
        let mut reader = Body::of(connection, &headers);
        reader.read_to_end(&mut body)?;
        matches!(reader.framing, Framing::UntilClosed)
    };
    let keep = !ends_with_connection && header(&headers, "connection") != Some("close");
    Ok((Reply { status, headers, body }, keep))
}

enum Framing {
    Length(usize),
    /// Bytes left of the present chunk; `None` after the last one.
    Chunks(Option<usize>),
    UntilClosed,
}

/// The body of an answer, whichever way its end is marked.
pub(crate) struct Body<R> {
    connection: R,
    framing: Framing,
}

impl<R: BufRead> Body<R> {
    fn of(connection: R, headers: &Headers) -> Self {
        let chunked = header(headers, "transfer-encoding").is_some_and(|value| value.contains("chunked"));
        let length = header(headers, "content-length").and_then(|value| value.parse().ok());
        let framing = match length {
            _ if chunked => Framing::Chunks(Some(0)),
            Some(length) => Framing::Length(length),
            None => Framing::UntilClosed,
        };
        Self { connection, framing }
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.framing {
            Framing::UntilClosed => self.connection.read(buffer),
            Framing::Length(left) => {
                let wanted = buffer.len().min(*left);
                // A buffered reader that is asked for nothing would still wait for more.
                if wanted == 0 {
                    return Ok(0);
                }
                let read = self.connection.read(&mut buffer[..wanted])?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= read;
                Ok(read)
            }
            Framing::Chunks(None) => Ok(0),
            Framing::Chunks(Some(left)) => {
                if *left == 0 {
                    let size = read_line(&mut self.connection)?;
                    let size = size.split(';').next().unwrap_or_default().trim();
                    *left = usize::from_str_radix(size, 16).map_err(|_| invalid("no chunk size"))?;
                    if *left == 0 {
                        read_line(&mut self.connection)?;
                        self.framing = Framing::Chunks(None);
                        return Ok(0);
                    }
                }
                let wanted = buffer.len().min(*left);
                let read = self.connection.read(&mut buffer[..wanted])?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *left -= read;
                if *left == 0 {
                    read_line(&mut self.connection)?;
                }
                Ok(read)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers each request with the next of these texts.
    fn answering(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (connection, _) = listener.accept().unwrap();
            let mut connection = BufReader::new(connection);
            for answer in answers {
                while !read_line(&mut connection).unwrap().is_empty() {}
                connection.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn lengths_and_chunks_are_read_on_one_connection() {
        let address = answering(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n16\r\n{\"error\":{\"code\":\"held\r\n3\r\n\"}}\r\n0\r\n\r\n",
        ]);
        let mut http = Http::new(address);
        assert_eq!(http.get("/").expect(200)["a"], 1);
        let reply = http.get("/");
        assert_eq!((reply.status, reply.code().as_str()), (409, "held"));
    }

    #[test]
    fn an_answer_that_never_comes_is_unknown() {
        let address = answering(&[""]);
        let failed = Http::new(address).call("GET", "/", None).unwrap_err();
        assert!(matches!(failed, CallFailed::Unknown(_)), "{failed}");
    }

    #[test]
    fn nobody_listening_means_not_sent() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let failed = Http::new(address).call("GET", "/", None).unwrap_err();
        assert!(matches!(failed, CallFailed::NotSent(_)), "{failed}");
    }
}
