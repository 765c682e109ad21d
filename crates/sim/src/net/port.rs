//! The network as a process sees it: listening, connecting, reading and writing. `net.rs` decides what
//! happens.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use tenure_client::{Connection, Dial, Dialled};
use tenure_replica::{Listener, Network, Stream};
use tenure_server::{Accept, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::{Calling, Ended, HostId, Listening, Net, Packet, STREAM_BYTES_MAX, What, host_of, ip};

/// The network as one process sees it.
#[derive(Clone)]
pub struct Port {
    net: Net,
    host: HostId,
    life: u64,
}

impl Port {
    pub(super) fn new(net: &Net, host: HostId, life: u64) -> Port {
        Port { net: net.clone(), host, life }
    }

    /// Opens a stream to whoever listens at `address`.
    pub async fn connect(&self, address: &str) -> io::Result<SimStream> {
        let reply = {
            let mut inside = self.net.inside();
            let from = (self.host, self.life);
            let to = host_of(address).ok_or(io::ErrorKind::AddrNotAvailable)?;
            if to == self.host {
                // Within the machine there is no network.
                let here = inside.listening.get(address).map(|listening| (listening.host, listening.life));
                let at = here.filter(|at| inside.alive(*at)).ok_or(io::ErrorKind::ConnectionRefused)?;
                let (ours, theirs) = inside.make(&self.net, from, at);
                let listening = inside.listening.get_mut(address).expect("it was just found");
                listening.arrived.push_back((theirs, ip(to)));
                let waker = listening.waker.take();
                drop(inside);
                waker.into_iter().for_each(Waker::wake);
                return Ok(ours);
            }
            let (reply, answer) = oneshot::channel();
            let call = inside.calls.len();
            let address = address.to_owned();
            inside.calls.push(Calling { from, to, address, reply: Some(reply), made: None });
            let now = inside.now;
            inside.schedule(now + 1, What::SynLeaves(call, 0));
            answer
        };
        reply.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Begins to listen at `address`, which must be of this machine.
    pub fn listen(&self, address: &str) -> io::Result<SimListener> {
        let mut inside = self.net.inside();
        let taken = inside
            .listening
            .get(address)
            .is_some_and(|listening| inside.alive((listening.host, listening.life)));
        if taken {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let listening = Listening { host: self.host, life: self.life, arrived: VecDeque::new(), waker: None };
        let before = inside.listening.insert(address.to_owned(), listening);
        drop(inside);
        drop(before);
        Ok(SimListener { net: self.net.clone(), address: address.to_owned(), life: self.life })
    }
}

impl Network for Port {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(Port::connect(self, address).await?) as Box<dyn Stream>) })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(Box::new(Port::listen(self, address)?) as Box<dyn Listener>) })
    }
}

impl Dial for Port {
    fn dial(&self, address: String) -> Dialled {
        let port = self.clone();
        Box::pin(async move { Ok(Box::new(port.connect(&address).await?) as Box<dyn Connection>) })
    }
}

/// A place where streams arrive.
pub struct SimListener {
    net: Net,
    address: String,
    life: u64,
}

impl SimListener {
    pub(super) async fn next(&mut self) -> io::Result<(SimStream, String)> {
        poll_fn(|context| {
            let mut inside = self.net.inside();
            let Some(listening) = inside.listening.get_mut(&self.address) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            match listening.arrived.pop_front() {
                Some(arrived) => Poll::Ready(Ok(arrived)),
                None => {
                    listening.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut inside = self.net.inside();
        let ours = inside.listening.get(&self.address).is_some_and(|listening| listening.life == self.life);
        let gone = if ours { inside.listening.remove(&self.address) } else { None };
        drop(inside);
        drop(gone);
    }
}

impl Listener for SimListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(self.next().await?.0) as Box<dyn Stream>) })
    }
}

impl Accept for SimListener {
    type Connection = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, Peer)> {
        let (stream, name) = self.next().await?;
        Ok((stream, Peer { name, address: None, own: false }))
    }
}

/// One end of a stream.
pub struct SimStream {
    net: Net,
    pub(super) out: usize,
    into: usize,
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inside = self.net.inside();
        let pipe = &mut inside.pipes[self.into];
        if !pipe.arrived.is_empty() {
            let (front, _) = pipe.arrived.as_slices();
            let many = front.len().min(buffer.remaining());
            buffer.put_slice(&front[..many]);
            pipe.arrived.drain(..many);
            let writer = pipe.writer.take();
            drop(inside);
            writer.into_iter().for_each(Waker::wake);
            return Poll::Ready(Ok(()));
        }
        match pipe.ended {
            Some(Ended::Fin) => Poll::Ready(Ok(())),
            Some(Ended::Reset) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                pipe.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inside = self.net.inside();
        let pipe = &mut inside.pipes[self.out];
        if pipe.broken || pipe.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = STREAM_BYTES_MAX.saturating_sub(pipe.flight_bytes + pipe.arrived.len());
        if room == 0 {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let many = room.min(bytes.len());
        let over = inside.send(self.out, Packet::Data(bytes[..many].to_vec()));
        drop(inside);
        drop(over);
        Poll::Ready(Ok(many))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl SimStream {
    pub(super) fn new(net: &Net, out: usize, into: usize) -> SimStream {
        SimStream { net: net.clone(), out, into }
    }

    fn close(&self) {
        let mut inside = self.net.inside();
        let pipe = &mut inside.pipes[self.out];
        if std::mem::replace(&mut pipe.closed, true) {
            return;
        }
        let from = pipe.from.0;
        // A machine that has lost its power closes nothing.
        if inside.machines.get(&from).is_some_and(|machine| machine.up) {
            let over = inside.send(self.out, Packet::Fin);
            drop(inside);
            drop(over);
        }
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.close();
        let mut inside = self.net.inside();
        let pipe = &mut inside.pipes[self.into];
        pipe.unread = true;
        pipe.arrived = VecDeque::new();
        pipe.reader = None;
    }
}
