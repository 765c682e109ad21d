//! A TCP proxy that can be cut: it forwards connections to nodes until it is cut, and nothing afterwards.
//! Neither side is notified, as in a real partition: connections stay open and silent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::DemoError;

/// How often a silent direction looks whether it was cut.
const LOOK: Duration = Duration::from_millis(50);

/// A wire to some nodes.
pub struct CutProxy {
    cut: Arc<AtomicBool>,
    ends: Vec<SocketAddr>,
}

impl CutProxy {
    /// One end here for each node there.
    pub fn to(nodes: &[SocketAddr]) -> Result<CutProxy, DemoError> {
        let cut = Arc::new(AtomicBool::new(false));
        let mut ends = Vec::new();
        for node in nodes.iter().copied() {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            ends.push(listener.local_addr()?);
            let cut = Arc::clone(&cut);
            std::thread::spawn(move || {
                for near in listener.incoming().map_while(Result::ok) {
                    let Ok(far) = TcpStream::connect(node) else { continue };
                    let pairs = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                    for (from, to) in pairs {
                        let (Ok(from), Ok(to)) = (from, to) else { continue };
                        let cut = Arc::clone(&cut);
                        std::thread::spawn(move || carry(from, to, &cut));
                    }
                }
            });
        }
        Ok(CutProxy { cut, ends })
    }

    /// Where a client reaches the nodes through it.
    pub fn endpoints(&self) -> String {
        self.ends.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Carries nothing from now on.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let _ = to.set_nodelay(true);
    if from.set_read_timeout(Some(LOOK)).is_err() {
        return;
    }
    let mut buffer = [0; 16 * 1024];
    loop {
        match from.read(&mut buffer) {
            // What was read when the wire is cut has not arrived: it stays on the way for ever, with its
            // connection.
            _ if cut.load(Ordering::SeqCst) => std::thread::sleep(LOOK),
            Ok(0) => {
                let _ = to.shutdown(std::net::Shutdown::Write);
                return;
            }
            Ok(many) => {
                if to.write_all(&buffer[..many]).is_err() {
                    return;
                }
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
