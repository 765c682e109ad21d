//! HTTP by hand: just enough to make a bucket, and to stand between a client and a server and lie.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// One message as it went over the wire: its first line and headers, and its body.
pub struct Message {
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    fn read(stream: &TcpStream) -> Option<Message> {
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Message { head, body })
    }

    fn write(&self, mut stream: &TcpStream) {
        let _ = stream.write_all(format!("{}\r\n", self.head).as_bytes());
        let _ = stream.write_all(&self.body);
    }

    pub fn has_header(&self, name: &str) -> bool {
        self.head.lines().any(|line| line.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name)))
    }
}

/// Sends one request and waits for the answer.
pub fn request(port: u16, method: &str, path: &str, body: &str) {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    Message { head, body: body.into() }.write(&stream);
    Message::read(&stream).expect("an answer");
}

/// An answer made up on the spot.
pub fn answer(status: &str, headers: &str) -> Message {
    Message { head: format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n"), body: Vec::new() }
}

/// Listens, and lets `serve` answer every request.
pub fn serve(serve: impl Fn(Message) -> Message + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || {
                while let Some(message) = Message::read(&stream) {
                    serve(message).write(&stream);
                }
            });
        }
    });
    port
}

/// Passes a request on and returns the answer.
pub fn forward(port: u16, message: &Message) -> Message {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    message.write(&stream);
    Message::read(&stream).expect("an answer")
}
