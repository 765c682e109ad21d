//! A connection in between that can be cut, and that can swallow answers: what a network does to a client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a silent direction looks whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long the target may take to accept a connection: it may be cut off.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Passes connections on to one address, for as long as it exists.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    swallow: AtomicBool,
    ended: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Questions,
    Answers,
}

impl Proxy {
    /// A proxy in front of this address.
    pub fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::new(State::default());
        let accepting = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let state = accepting.clone();
                // Each by itself: one that finds nobody keeps no other waiting.
                std::thread::spawn(move || {
                    if let Ok(server) = TcpStream::connect_timeout(&target, CONNECT_WITHIN) {
                        pass_on(&client, &server, &state);
                    }
                });
            }
        });
        Proxy { address, state }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing passes in either direction; what is sent meanwhile arrives later. Or it does again.
    pub fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::SeqCst);
    }

    /// Questions arrive and their answers are lost. When that ends, so do the connections that lost something.
    pub fn swallow_answers(&self, swallow: bool) {
        self.state.swallow.store(swallow, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // Wakes whoever waits for the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(client: &TcpStream, server: &TcpStream, state: &Arc<State>) {
    let ends = [(client, server, Direction::Questions), (server, client, Direction::Answers)];
    for (from, to, direction) in ends {
        let _ = from.set_nodelay(true);
        let _ = from.set_read_timeout(Some(LOOK_EVERY));
        if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
            let state = state.clone();
            std::thread::spawn(move || pump(from, to, direction, &state));
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, direction: Direction, state: &State) {
    let mut bytes = vec![0; 64 << 10];
    let mut lost_something = false;
    while !state.ended.load(Ordering::Relaxed) {
        let swallow = direction == Direction::Answers && state.swallow.load(Ordering::SeqCst);
        if lost_something && !swallow {
            break;
        }
        let read = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        while state.cut.load(Ordering::SeqCst) && !state.ended.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
        if direction == Direction::Answers && state.swallow.load(Ordering::SeqCst) {
            lost_something = true;
        } else if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
