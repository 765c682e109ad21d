//! A network in memory whose wires can be cut (both ends notice) or silenced (nobody does).

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use tenure_replica::{Listener, Network, NodeId, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Whole,
    /// Connections break, and new ones are refused.
    Cut,
    /// Bytes vanish, and nobody is notified.
    Silent,
}

type Wires = BTreeMap<(NodeId, NodeId), watch::Sender<Wire>>;

/// All wires between all nodes. Clones are the same network.
#[derive(Clone, Default)]
pub struct Switch {
    listeners: Arc<Mutex<BTreeMap<String, mpsc::UnboundedSender<DuplexStream>>>>,
    wires: Arc<Mutex<Wires>>,
    /// Whether what listens at a node's port gets anything.
    ports: Arc<Mutex<BTreeMap<NodeId, watch::Sender<Wire>>>>,
}

pub fn address(node: NodeId) -> String {
    format!("node-{node}")
}

impl Switch {
    /// The network as `node` sees it.
    pub fn port(&self, node: NodeId) -> Arc<Port> {
        Arc::new(Port { switch: self.clone(), node })
    }

    /// Changes the wires between `node` and all others, in both directions.
    pub fn isolate(&self, node: NodeId, state: Wire) {
        for other in 1..=9 {
            if other != node {
                self.wire(node, other).send_replace(state);
                self.wire(other, node).send_replace(state);
            }
        }
    }

    /// Changes what arrives at a node's port. Connections that the node opens itself work both ways.
    pub fn set_port(&self, node: NodeId, state: Wire) {
        self.port_of(node).send_replace(state);
    }

    fn port_of(&self, node: NodeId) -> watch::Sender<Wire> {
        let mut ports = self.ports.lock().unwrap();
        ports.entry(node).or_insert_with(|| watch::channel(Wire::Whole).0).clone()
    }

    fn wire(&self, from: NodeId, to: NodeId) -> watch::Sender<Wire> {
        let mut wires = self.wires.lock().unwrap();
        wires.entry((from, to)).or_insert_with(|| watch::channel(Wire::Whole).0).clone()
    }
}

pub struct Port {
    switch: Switch,
    node: NodeId,
}

impl Network for Port {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let to: NodeId = address.trim_start_matches("node-").parse().expect("one of our addresses");
            let (out, back) = (self.switch.wire(self.node, to), self.switch.wire(to, self.node));
            let port = self.switch.port_of(to);
            let state = if *port.borrow() == Wire::Whole { *out.borrow() } else { *port.borrow() };
            match state {
                Wire::Whole => {}
                Wire::Cut => return Err(io::ErrorKind::ConnectionRefused.into()),
                Wire::Silent => std::future::pending().await,
            }
            let listener = self.switch.listeners.lock().unwrap().get(address).cloned();
            let (near, near_end) = tokio::io::duplex(1 << 20);
            let (far, far_end) = tokio::io::duplex(1 << 20);
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            listener.ok_or_else(refused)?.send(far).map_err(|_| refused())?;
            let (near_reads, near_writes) = tokio::io::split(near_end);
            let (far_reads, far_writes) = tokio::io::split(far_end);
            tokio::spawn(async move {
                let mut port = port.subscribe();
                let there = std::pin::pin!(carry(near_reads, far_writes, out.subscribe()));
                let and_back = std::pin::pin!(carry(far_reads, near_writes, back.subscribe()));
                tokio::select! {
                    biased;
                    _ = port.wait_for(|state| *state != Wire::Whole) => {}
                    () = there => return,
                    () = and_back => return,
                }
                // Neither end is notified while it is silent.
                let _ = port.wait_for(|state| *state != Wire::Silent).await;
            });
            Ok(Box::new(near) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.switch.listeners.lock().unwrap().insert(address.into(), sender);
            Ok(Box::new(Plug(receiver)) as Box<dyn Listener>)
        })
    }
}

/// Carries bytes one way while the wire is whole. Ends when it is cut, or one end is gone.
async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut wire: watch::Receiver<Wire>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            biased;
            _ = wire.wait_for(|state| *state == Wire::Cut) => return,
            read = from.read(&mut buffer) => read,
        };
        let Ok(length @ 1..) = read else { return };
        // A stream with a hole in it is no stream: once silent, it stays so until somebody gives up.
        if *wire.borrow() == Wire::Silent {
            let _ = wire.wait_for(|state| *state == Wire::Cut).await;
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

struct Plug(mpsc::UnboundedReceiver<DuplexStream>);

impl Listener for Plug {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            match self.0.recv().await {
                Some(stream) => Ok(Box::new(stream) as Box<dyn Stream>),
                None => std::future::pending().await,
            }
        })
    }
}
