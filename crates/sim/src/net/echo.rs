//! Replays a stream: everything that a process sent on one stream arrives a second time, on another stream
//! and later, as from a faulty middlebox. So votes, appends, opens, renewals and commands arrive twice, and
//! after others that were sent later.
//!
//! A stream is replayed from its beginning, packet by packet, as far as it was kept; the answers are dropped.
//! This happens only in runs in which every write has a number: a write without one is done as often as it
//! arrives.

use super::{HostId, Inside, Net, Packet, Tick, What};

/// The machine that repeats.
pub(super) const HOST: HostId = 98;
/// What is kept of one stream.
const KEPT_BYTES_MAX: usize = 32 << 10;

/// What was said along a stream so far, and to whom.
pub(super) struct Recording {
    address: String,
    packets: Vec<Vec<u8>>,
    bytes: usize,
    full: bool,
}

impl Recording {
    pub(super) fn new(address: String) -> Recording {
        Recording { address, packets: Vec::new(), bytes: 0, full: false }
    }

    pub(super) fn receive(&mut self, packet: &[u8]) {
        self.full |= self.bytes + packet.len() > KEPT_BYTES_MAX;
        if !self.full {
            self.bytes += packet.len();
            self.packets.push(packet.to_vec());
        }
    }
}

impl Inside {
    /// Who would receive what was sent along a pipe, if it were sent again.
    fn would_receive(&self, index: usize) -> Option<(HostId, u64)> {
        let recording =
            self.pipes[index].recording.as_ref().filter(|recording| !recording.packets.is_empty())?;
        let listening = self.listening.get(&recording.address)?;
        Some((listening.host, listening.life)).filter(|at| self.alive(*at))
    }
}

impl Net {
    /// Keeps what is said from now on.
    pub fn keep_what_is_said(&self) {
        let mut inside = self.inside();
        inside.keeps = true;
        let machine = inside.machines.entry(HOST).or_default();
        machine.up = true;
        machine.life += 1;
    }

    /// Says again what was said along one stream to a machine that listens, `spared` excepted; who had said
    /// it, to whom, and how much. Nothing if there is nothing to repeat.
    pub fn repeat(&self, spared: &[HostId]) -> Option<(HostId, HostId, usize)> {
        let mut inside = self.inside();
        let spares = |host| spared.contains(&host);
        let all: Vec<(usize, (HostId, u64))> = (0..inside.pipes.len())
            .filter(|index| !spares(inside.pipes[*index].from.0))
            .filter_map(|index| Some((index, inside.would_receive(index)?)))
            .collect();
        if all.is_empty() {
            return None;
        }
        let (index, to) = *inside.dice.pick(&all);
        let from = inside.pipes[index].from.0;
        let recording = inside.pipes[index].recording.as_ref().expect("it was just found");
        let (address, packets, bytes) =
            (recording.address.clone(), recording.packets.clone(), recording.bytes);
        let life = inside.machines[&HOST].life;
        let (ours, theirs) = inside.make(self, (HOST, life), to);
        let out = ours.out;
        // As fast as it was never said, or dragging on.
        let pace: Tick = *inside.dice.pick(&[1, 5, 40]);
        let mut at = inside.now + 1;
        for packet in packets {
            at += inside.dice.within(0, pace);
            let pipe = &mut inside.pipes[out];
            pipe.flight_bytes += packet.len();
            pipe.flight.push_back((Some(at), Packet::Data(packet)));
            inside.schedule(at, What::Arrive(out));
        }
        inside.echoes.push(ours);
        let listening = inside.listening.get_mut(&address).expect("it was just found");
        listening.arrived.push_back((theirs, super::ip(HOST)));
        let waker = listening.waker.take();
        drop(inside);
        waker.into_iter().for_each(std::task::Waker::wake);
        Some((from, to.0, bytes))
    }

    /// Nothing is repeated any more.
    pub(super) fn fall_silent(&self) {
        let mut inside = self.inside();
        let echoes = std::mem::take(&mut inside.echoes);
        for echo in &echoes {
            inside.pipes[echo.out].flight.clear();
        }
        drop(inside);
        drop(echoes);
    }
}
