//! The simulated network: ordered byte streams, as TCP provides them over links that lose and delay packets.
//!
//! A cut link loses packets, and TCP sends them again: what was written during a cut arrives some time after
//! it, unless one end has gone by then. A process that ends closes its streams. A machine that loses power
//! sends nothing; a later write to it fails, because the stream is unknown there. A packet takes at least one
//! tick, so every machine can run through a tick without looking at the others.
//!
//! Within a stream nothing is duplicated or reordered. Between streams both happen: connections overtake each
//! other, and in some runs what was sent on one stream is sent again on another, much later (`net/echo.rs`).
//!
//! This file decides when bytes arrive. It never looks at them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::record::Record;

mod echo;
mod port;

pub use port::{Port, SimStream};

use echo::Recording;

/// Milliseconds since the simulation began.
pub type Tick = u64;

/// One machine.
pub type HostId = u32;

/// Bytes that one direction of a stream holds before its writer has to wait.
const STREAM_BYTES_MAX: usize = 256 << 10;
/// The first repetition of an unanswered connection request; each further one takes twice as long.
const SYN_AGAIN_AFTER: Tick = 1_000;
/// Longest silence of a sender's timer after a link has come back.
const SEND_AGAIN_MAX: Tick = 1_200;

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct Net(Arc<Mutex<Inside>>);

struct Inside {
    now: Tick,
    dice: Dice,
    machines: BTreeMap<HostId, Machine>,
    links: BTreeMap<(HostId, HostId), Link>,
    listening: BTreeMap<String, Listening>,
    pipes: Vec<Pipe>,
    calls: Vec<Calling>,
    events: BinaryHeap<Reverse<(Tick, u64, What)>>,
    event_number: u64,
    delivered: u64,
    /// Where every packet is written down, if that is wanted.
    record: Option<Record>,
    /// Whether what is said is kept, to be said again.
    keeps: bool,
    /// The streams on which it is being said again.
    echoes: Vec<SimStream>,
}

/// A machine as others see it.
#[derive(Clone, Copy, Default)]
struct Machine {
    up: bool,
    /// Raised with every process that runs on it.
    life: u64,
}

/// One direction between two machines.
#[derive(Clone, Copy, Default)]
struct Link {
    /// Since when it loses everything.
    cut: Option<Tick>,
    /// What every packet takes longer.
    slower: Tick,
}

struct Listening {
    host: HostId,
    life: u64,
    arrived: VecDeque<(SimStream, String)>,
    waker: Option<Waker>,
}

/// One direction of a stream.
struct Pipe {
    from: (HostId, u64),
    to: (HostId, u64),
    /// Sent and not arrived, in order; without a moment while the link is cut.
    flight: VecDeque<(Option<Tick>, Packet)>,
    flight_bytes: usize,
    arrived: VecDeque<u8>,
    ended: Option<Ended>,
    /// Nobody will read what arrives.
    unread: bool,
    /// The writer has been notified that nobody reads.
    broken: bool,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// What was said along it, if it may be said again.
    recording: Option<Recording>,
}

enum Packet {
    Data(Vec<u8>),
    Fin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Fin,
    Reset,
}

/// Somebody connects.
struct Calling {
    from: (HostId, u64),
    to: HostId,
    address: String,
    reply: Option<oneshot::Sender<io::Result<SimStream>>>,
    made: Option<SimStream>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The front of a pipe arrives.
    Arrive(usize),
    /// The writer of a pipe is notified that nobody reads.
    Abort(usize),
    /// A connection request leaves for the n-th time.
    SynLeaves(usize, u32),
    SynArrives(usize, u32),
    /// The answer arrives: yes, or nobody listens.
    Connected(usize, u32),
    Refused(usize),
}

/// The address of a machine.
pub fn ip(host: HostId) -> String {
    format!("10.0.0.{host}")
}

fn host_of(address: &str) -> Option<HostId> {
    address.strip_prefix("10.0.0.")?.split(':').next()?.parse().ok()
}

impl Net {
    /// A network whose delays fall as the dice say.
    pub fn new(dice: Dice) -> Net {
        Net(Arc::new(Mutex::new(Inside {
            now: 0,
            dice,
            machines: BTreeMap::new(),
            links: BTreeMap::new(),
            listening: BTreeMap::new(),
            pipes: Vec::new(),
            calls: Vec::new(),
            events: BinaryHeap::new(),
            event_number: 0,
            delivered: 0,
            record: None,
            keeps: false,
            echoes: Vec::new(),
        })))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes every packet down from now on.
    pub fn write_down(&self, record: Record) {
        self.inside().record = Some(record);
    }

    /// A process begins on a machine; what it connects with.
    pub fn process(&self, host: HostId) -> Port {
        let mut inside = self.inside();
        let machine = inside.machines.entry(host).or_default();
        machine.up = true;
        machine.life += 1;
        Port::new(self, host, machine.life)
    }

    /// A process ends: its streams are closed, in the order in which they were made. (A runtime drops its
    /// tasks in an order that differs from run to run.)
    pub fn hang_up(&self, host: HostId) {
        let mut inside = self.inside();
        let machine = inside.machines.get(&host).copied().unwrap_or_default();
        let ours = |pipe: &Pipe| pipe.from == (host, machine.life) && !pipe.closed;
        let open: Vec<usize> = (0..inside.pipes.len()).filter(|index| ours(&inside.pipes[*index])).collect();
        for index in open {
            inside.pipes[index].closed = true;
            if machine.up {
                let over = inside.send(index, Packet::Fin);
                drop(over);
            }
        }
    }

    /// The power goes. Nobody is notified.
    pub fn power_off(&self, host: HostId) {
        self.inside().machines.entry(host).or_default().up = false;
    }

    /// Loses everything from one machine to another, or stops doing so.
    pub fn cut(&self, from: HostId, to: HostId, cut: bool) {
        let mut inside = self.inside();
        let now = inside.now;
        let link = inside.links.entry((from, to)).or_default();
        let was = link.cut;
        if was.is_some() == cut {
            return;
        }
        link.cut = cut.then_some(now);
        let on_link = |pipe: &Pipe| pipe.from.0 == from && pipe.to.0 == to;
        let pipes: Vec<usize> =
            (0..inside.pipes.len()).filter(|index| on_link(&inside.pipes[*index])).collect();
        for index in pipes {
            if cut {
                // What is on its way is lost, and will be sent again.
                inside.pipes[index].flight.iter_mut().for_each(|(at, _)| *at = None);
            } else if !inside.pipes[index].flight.is_empty() {
                // A sender's timer doubles, so it is silent for up to as long again as it was in vain.
                let silent = SEND_AGAIN_MAX.min(now - was.unwrap_or(now)).max(2);
                let at = now + inside.dice.within(1, silent);
                inside.pipes[index].flight.iter_mut().for_each(|(when, _)| *when = Some(at));
                inside.schedule(at, What::Arrive(index));
            }
        }
    }

    /// Makes everything from one machine to another take longer.
    pub fn slow_down(&self, from: HostId, to: HostId, slower: Tick) {
        self.inside().links.entry((from, to)).or_default().slower = slower;
    }

    /// Ends all cuts, slowness and repetitions.
    pub fn heal(&self) {
        self.fall_silent();
        let links: Vec<(HostId, HostId)> = self.inside().links.keys().copied().collect();
        for (from, to) in links {
            self.slow_down(from, to, 0);
            self.cut(from, to, false);
        }
    }

    /// It is `now`: what is due arrives.
    pub fn tick(&self, now: Tick) {
        self.inside().now = now;
        loop {
            let mut inside = self.inside();
            match inside.events.peek() {
                Some(Reverse((at, _, _))) if *at <= now => {}
                _ => return,
            }
            let Some(Reverse((_, _, what))) = inside.events.pop() else { return };
            inside.delivered += 1;
            let over = inside.happen(what, self);
            // Dropped and woken without the lock: both may come back here.
            drop(inside);
            drop(over);
        }
    }

    /// Forgets everybody who still waits for a stream: they hold the network as it holds them.
    pub fn close(&self) {
        let mut inside = self.inside();
        let (calls, listening) = (std::mem::take(&mut inside.calls), std::mem::take(&mut inside.listening));
        let echoes = std::mem::take(&mut inside.echoes);
        inside.events.clear();
        drop(inside);
        drop((calls, listening, echoes));
    }

    /// How many things have happened on the network.
    pub fn delivered(&self) -> u64 {
        self.inside().delivered
    }
}

/// What is to be dropped or notified once the lock is free.
#[derive(Default)]
struct Over {
    streams: Vec<SimStream>,
    wakers: Vec<Waker>,
    replies: Vec<(oneshot::Sender<io::Result<SimStream>>, io::Result<SimStream>)>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        for (reply, answer) in self.replies.drain(..) {
            // Whoever has given up meanwhile drops the stream, which closes it.
            let _ = reply.send(answer);
        }
    }
}

impl Inside {
    fn schedule(&mut self, at: Tick, what: What) {
        self.event_number += 1;
        self.events.push(Reverse((at, self.event_number, what)));
    }

    fn link(&self, from: HostId, to: HostId) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or_default()
    }

    /// When something that leaves now arrives; never, if the link is cut.
    fn arrival(&mut self, from: HostId, to: HostId) -> Option<Tick> {
        let link = self.link(from, to);
        if link.cut.is_some() {
            return None;
        }
        let usual = match self.dice.within(0, 99) {
            0 => self.dice.within(3, 40),
            1..=9 => self.dice.within(2, 4),
            _ => self.dice.within(1, 2),
        };
        Some(self.now + usual + link.slower)
    }

    fn alive(&self, (host, life): (HostId, u64)) -> bool {
        self.machines.get(&host).is_some_and(|machine| machine.up && machine.life == life)
    }

    /// Makes the two directions of a stream; the first end is `from`'s.
    fn make(&mut self, net: &Net, from: (HostId, u64), to: (HostId, u64)) -> (SimStream, SimStream) {
        let first = self.pipes.len();
        self.pipes.push(Pipe::new(from, to));
        self.pipes.push(Pipe::new(to, from));
        (SimStream::new(net, first, first + 1), SimStream::new(net, first + 1, first))
    }

    /// Sends something along a pipe.
    fn send(&mut self, index: usize, packet: Packet) -> Over {
        let mut over = Over::default();
        let (from, to) = (self.pipes[index].from, self.pipes[index].to);
        if let Some(record) = &self.record {
            let bytes = match &packet {
                Packet::Data(bytes) => bytes.len(),
                Packet::Fin => 0,
            };
            let (from, to) = (from.0, to.0);
            record.note(self.now * 1_000, format_args!("packet {from} to {to} on {index}, {bytes} bytes"));
        }
        if from.0 == to.0 {
            self.land(index, packet, &mut over);
            return over;
        }
        if let (Some(recording), Packet::Data(bytes)) = (&mut self.pipes[index].recording, &packet) {
            recording.receive(bytes);
        }
        let at = self.arrival(from.0, to.0);
        let pipe = &mut self.pipes[index];
        let after = pipe.flight.back().and_then(|(at, _)| *at).unwrap_or(0);
        let at = at.map(|at| at.max(after));
        if let Packet::Data(bytes) = &packet {
            pipe.flight_bytes += bytes.len();
        }
        pipe.flight.push_back((at, packet));
        if let Some(at) = at {
            self.schedule(at, What::Arrive(index));
        }
        over
    }

    /// Something has come to the end of a pipe.
    fn land(&mut self, index: usize, packet: Packet, over: &mut Over) {
        let alive = self.alive(self.pipes[index].to);
        let up = self.machines.get(&self.pipes[index].to.0).is_some_and(|machine| machine.up);
        let pipe = &mut self.pipes[index];
        if let Packet::Data(bytes) = &packet {
            pipe.flight_bytes = pipe.flight_bytes.saturating_sub(bytes.len());
        }
        if !alive || pipe.unread {
            let (to, from) = (pipe.to.0, pipe.from.0);
            // A machine without power answers nothing; one that knows nothing of the stream says so.
            if up && let Some(at) = self.arrival(to, from) {
                self.schedule(at, What::Abort(index));
            }
            return;
        }
        match packet {
            // Whoever repeats what another said does not listen to the answers.
            Packet::Data(_) if pipe.to.0 == echo::HOST => {}
            Packet::Data(bytes) => pipe.arrived.extend(bytes),
            Packet::Fin => pipe.ended = pipe.ended.or(Some(Ended::Fin)),
        }
        over.wakers.extend(pipe.reader.take());
    }

    fn happen(&mut self, what: What, net: &Net) -> Over {
        let mut over = Over::default();
        match what {
            What::Arrive(index) => loop {
                let due = self.pipes[index]
                    .flight
                    .front()
                    .is_some_and(|(at, _)| at.is_some_and(|at| at <= self.now));
                if !due {
                    break;
                }
                let (_, packet) = self.pipes[index].flight.pop_front().expect("it was just seen");
                self.land(index, packet, &mut over);
            },
            What::Abort(index) => {
                let pipe = &mut self.pipes[index];
                pipe.broken = true;
                over.wakers.extend(pipe.writer.take());
                // The other direction of the same stream.
                let pipe = &mut self.pipes[index ^ 1];
                pipe.ended = pipe.ended.or(Some(Ended::Reset));
                over.wakers.extend(pipe.reader.take());
            }
            What::SynLeaves(call, attempt) => {
                let Calling { from, to, .. } = self.calls[call];
                let wanted = self.calls[call].reply.as_ref().is_some_and(|reply| !reply.is_closed());
                if !wanted || !self.alive(from) {
                    self.calls[call].reply = None;
                } else if let Some(at) = self.arrival(from.0, to) {
                    self.schedule(at, What::SynArrives(call, attempt));
                } else {
                    self.schedule(
                        self.now + (SYN_AGAIN_AFTER << attempt),
                        What::SynLeaves(call, attempt + 1),
                    );
                }
            }
            What::SynArrives(call, attempt) => {
                let Calling { from, to, .. } = self.calls[call];
                if !self.machines.get(&to).is_some_and(|machine| machine.up) {
                    self.schedule(
                        self.now + (SYN_AGAIN_AFTER << attempt),
                        What::SynLeaves(call, attempt + 1),
                    );
                    return over;
                }
                let address = self.calls[call].address.clone();
                match self.listening.get(&address).map(|listening| (listening.host, listening.life)) {
                    Some(at) if self.alive(at) => {
                        let (ours, theirs) = self.make(net, from, at);
                        if self.keeps {
                            self.pipes[ours.out].recording = Some(Recording::new(address.clone()));
                        }
                        let listening = self.listening.get_mut(&address).expect("it was just found");
                        listening.arrived.push_back((theirs, ip(from.0)));
                        over.wakers.extend(listening.waker.take());
                        self.calls[call].made = Some(ours);
                        self.happen_later(What::Connected(call, 0), to, from.0);
                    }
                    _ => self.happen_later(What::Refused(call), to, from.0),
                }
            }
            What::Connected(call, attempt) => {
                let Calling { from, to, .. } = self.calls[call];
                if attempt == 0 || self.link(to, from.0).cut.is_none() {
                    let made = self.calls[call].made.take();
                    match (made, self.calls[call].reply.take()) {
                        (Some(made), Some(reply)) => over.replies.push((reply, Ok(made))),
                        (made, _) => over.streams.extend(made),
                    }
                } else {
                    let again = self.now + (SYN_AGAIN_AFTER << attempt.min(4));
                    self.schedule(again, What::Connected(call, attempt + 1));
                }
            }
            What::Refused(call) => {
                if let Some(reply) = self.calls[call].reply.take() {
                    over.replies.push((reply, Err(io::ErrorKind::ConnectionRefused.into())));
                }
            }
        }
        over
    }

    /// An answer to a connection request travels back, again and again if need be.
    fn happen_later(&mut self, what: What, from: HostId, to: HostId) {
        match (self.arrival(from, to), what) {
            (Some(at), what) => self.schedule(at, what),
            (None, What::Connected(call, _)) => {
                self.schedule(self.now + SYN_AGAIN_AFTER, What::Connected(call, 1));
            }
            (None, what) => self.schedule(self.now + SYN_AGAIN_AFTER, what),
        }
    }
}

impl Pipe {
    fn new(from: (HostId, u64), to: (HostId, u64)) -> Pipe {
        Pipe {
            from,
            to,
            flight: VecDeque::new(),
            flight_bytes: 0,
            arrived: VecDeque::new(),
            ended: None,
            unread: false,
            broken: false,
            closed: false,
            reader: None,
            writer: None,
            recording: None,
        }
    }
}

#[cfg(test)]
mod tests;
