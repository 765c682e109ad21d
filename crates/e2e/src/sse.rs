//! Server-sent events, as a watcher reads them.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::Value;

use crate::http::Body;

/// One event as it came.
#[derive(Clone, Debug)]
pub struct ServerSentEvent {
    /// The revision.
    pub id: u64,
    /// The name of the event; empty if it had none.
    pub name: String,
    /// What it tells.
    pub data: Value,
}

/// An open stream of events.
pub struct EventStream {
    lines: BufReader<Body<BufReader<TcpStream>>>,
}

impl EventStream {
    pub(crate) fn new(body: Body<BufReader<TcpStream>>) -> Self {
        Self { lines: BufReader::new(body) }
    }
}

impl Iterator for EventStream {
    type Item = ServerSentEvent;

    /// The next event; waits at most as long as its caller was made to, then ends.
    fn next(&mut self) -> Option<ServerSentEvent> {
        let mut event = ServerSentEvent { id: 0, name: String::new(), data: Value::Null };
        let mut data = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if line.is_empty() {
                // Comments and empty events keep a connection alive and tell nothing.
                if data.is_empty() {
                    continue;
                }
                event.data = serde_json::from_str(&data).unwrap_or(Value::String(data));
                return Some(event);
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = value.parse().unwrap_or(0),
                "event" => event.name = value.to_string(),
                "data" => data.push_str(value),
                _ => {}
            }
        }
    }
}
