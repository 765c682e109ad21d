//! The faults, drawn from the seed: one after another, several at once, each undone after a while. At the end
//! of the fault phase all of them are undone.

use std::time::Duration;

use crate::dice::Dice;
use crate::host::Still;
use crate::net::{HostId, Tick};
use crate::run::{OPERATOR, Run};
use crate::workload::RESOURCES;

/// Something to be undone later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Undo {
    Link(HostId, HostId),
    Speed(HostId, HostId),
    Wake(u64),
    WakeClient(u32),
    Disk(u64),
    StartClient(u32),
    /// It did not write after all: the power goes all the same.
    LeavePower(u64),
}

type Fault = fn(&mut Nemesis, Tick, Tick, &mut Run);

/// What can go wrong, and how often compared with the rest.
const KINDS: &[(u64, Fault)] = &[
    (12, Nemesis::partition),
    (6, Nemesis::one_way),
    (10, Nemesis::cut_client),
    (7, Nemesis::slow_link),
    (8, Nemesis::repeat),
    (6, Nemesis::kill),
    (5, Nemesis::power_loss),
    (4, Nemesis::power_loss_while_writing),
    (2, Nemesis::power_loss_everywhere),
    (11, Nemesis::pause),
    (10, Nemesis::pause_client),
    (6, Nemesis::kill_client),
    (6, Nemesis::slow_disk),
    (3, Nemesis::full_disk),
    (3, Nemesis::failing_syncs),
    (2, Nemesis::wipe),
    (2, Nemesis::retire),
    (3, Nemesis::step_down),
    (3, Nemesis::revoke),
];

/// Injects faults.
pub struct Nemesis {
    dice: Dice,
    next_at: Tick,
    /// The shortest and the longest rest between two faults.
    pace: (u64, u64),
    undo: Vec<(Tick, Undo)>,
}

impl Nemesis {
    /// A nemesis that begins at `from`.
    pub fn new(mut dice: Dice, from: Tick) -> Nemesis {
        // Some worlds are rough, some merely unlucky.
        let pace = *dice.pick(&[(30, 400), (150, 900), (300, 2_000), (800, 4_000)]);
        Nemesis { dice, next_at: from, pace, undo: Vec::new() }
    }

    /// It is `now`: undoes what is due, and breaks the next thing.
    pub fn tick(&mut self, now: Tick, run: &mut Run) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= now);
        self.undo = later;
        for (_, undo) in due {
            self.apply(undo, now, run);
        }
        if now >= self.next_at {
            self.next_at = now + self.dice.within(self.pace.0, self.pace.1);
            self.break_something(now, run);
        }
    }

    /// Ends everything that is wrong.
    pub fn end(&mut self, now: Tick, run: &mut Run) {
        let mut left = std::mem::take(&mut self.undo);
        left.sort();
        for (_, undo) in left {
            self.apply(undo, now, run);
        }
        run.net.heal();
    }

    fn later(&mut self, at: Tick, undo: Undo) {
        self.undo.push((at, undo));
    }

    /// How long a fault lasts: mostly shorter than a lease, at times longer.
    fn length(&mut self) -> Tick {
        match self.dice.within(0, 9) {
            0..=3 => self.dice.within(20, 400),
            4..=7 => self.dice.within(300, 2_500),
            _ => self.dice.within(2_000, 8_000),
        }
    }

    /// A node to break: the leader more often than its share.
    fn victim(&mut self, run: &Run) -> u64 {
        let leaders: Vec<u64> =
            run.members.iter().filter(|(_, member)| member.leads()).map(|(node, _)| *node).collect();
        if !leaders.is_empty() && self.dice.chance(50) {
            return *self.dice.pick(&leaders);
        }
        let nodes: Vec<u64> =
            run.members.iter().filter(|(_, member)| !member.leaving).map(|(node, _)| *node).collect();
        *self.dice.pick(&nodes)
    }

    fn client(&mut self, run: &Run) -> u32 {
        // Client 0 is left alone: it shows that a healthy holder keeps what it has.
        let clients: Vec<u32> = run.clients.keys().copied().filter(|process| *process != 0).collect();
        *self.dice.pick(&clients)
    }

    fn break_something(&mut self, now: Tick, run: &mut Run) {
        let until = now + self.length();
        let mut drawn = self.dice.within(1, KINDS.iter().map(|(weight, _)| weight).sum());
        for (weight, fault) in KINDS {
            match drawn.checked_sub(*weight) {
                None | Some(0) => return fault(self, now, until, run),
                Some(left) => drawn = left,
            }
        }
    }

    fn cut(&mut self, from: HostId, to: HostId, until: Tick, run: &mut Run) {
        run.net.cut(from, to, true);
        self.later(until, Undo::Link(from, to));
    }

    /// Splits the nodes, and some of the clients with them.
    fn partition(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let nodes: Vec<u64> = run.members.keys().copied().collect();
        let alone = self.victim(run);
        let bridge = self.dice.chance(25);
        let here: Vec<u64> = if bridge {
            // Two cannot reach each other, and both reach the rest.
            vec![alone]
        } else {
            nodes.iter().copied().filter(|node| *node == alone || self.dice.chance(25)).collect()
        };
        let there: Vec<u64> = match bridge {
            true => nodes.iter().copied().find(|node| *node != alone).into_iter().collect(),
            false => nodes.iter().copied().filter(|node| !here.contains(node)).collect(),
        };
        run.record.note(now * 1_000, format_args!("fault: partition {here:?} from {there:?}"));
        run.record.count(|coverage| match bridge {
            true => coverage.bridges += 1,
            false => coverage.cuts += 1,
        });
        let clients: Vec<HostId> =
            run.clients.iter().filter(|(process, _)| **process != 0).map(|(_, client)| client.host).collect();
        let clients: Vec<HostId> = clients.into_iter().filter(|_| self.dice.chance(30)).collect();
        for one in &here {
            for other in &there {
                self.cut(*one as HostId, *other as HostId, until, run);
                self.cut(*other as HostId, *one as HostId, until, run);
            }
            for client in &clients {
                self.cut(*one as HostId, *client, until, run);
                self.cut(*client, *one as HostId, until, run);
            }
        }
    }

    /// One node receives from another, which does not receive from it.
    fn one_way(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let (from, to) = (self.victim(run), self.victim(run));
        if from != to {
            run.record.note(now * 1_000, format_args!("fault: one way {from} to {to}"));
            run.record.count(|coverage| coverage.one_way_cuts += 1);
            self.cut(from as HostId, to as HostId, until, run);
        }
    }

    /// A client receives nothing from some or all nodes, and they nothing of it, or all the same.
    fn cut_client(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let client = self.client(run);
        let all = self.dice.chance(40);
        let only = self.victim(run);
        let one_way = self.dice.chance(30);
        run.record
            .note(now * 1_000, format_args!("fault: client {client} cut off, all={all} one_way={one_way}"));
        run.record.count(|coverage| {
            coverage.client_cuts += 1;
            coverage.one_way_cuts += u64::from(one_way);
        });
        let host = run.clients[&client].host;
        for node in run.members.keys().copied().collect::<Vec<_>>() {
            if all || node == only {
                self.cut(node as HostId, host, until, run);
                if !one_way {
                    self.cut(host, node as HostId, until, run);
                }
            }
        }
    }

    fn slow_link(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let (from, to) = (self.victim(run), self.victim(run));
        let slower = self.dice.within(5, 400);
        run.record.note(now * 1_000, format_args!("fault: {from} to {to} slower by {slower} ms"));
        run.record.count(|coverage| coverage.slow_links += 1);
        run.net.slow_down(from as HostId, to as HostId, slower);
        self.later(until, Undo::Speed(from as HostId, to as HostId));
    }

    /// What was said on one stream is said again on another.
    fn repeat(&mut self, now: Tick, _: Tick, run: &mut Run) {
        if !run.repeats {
            return;
        }
        // What an operator orders twice is done twice.
        if let Some((from, to, bytes)) = run.net.repeat(&[OPERATOR]) {
            run.record.note(
                now * 1_000,
                format_args!("fault: what {from} said to {to} is repeated, {bytes} bytes"),
            );
            run.record.count(|coverage| coverage.repeated += 1);
        }
    }

    fn kill(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.record.note(now * 1_000, format_args!("fault: node {node} is killed"));
        run.record.count(|coverage| coverage.kills += 1);
        let restart_at = now + self.dice.within(10, 3_000);
        let member = run.members.get_mut(&node).expect("it is a member");
        member.end(now, &run.net, None, Some(restart_at));
    }

    fn power_loss(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let node = self.victim(run);
        power_off(node, &mut self.dice, now, run);
    }

    /// The power goes while a disk is busy with what it was given: one of the next syncs does not return.
    fn power_loss_while_writing(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.record.note(now * 1_000, format_args!("fault: the power of node {node} goes as it writes"));
        let member = run.members.get_mut(&node).expect("it is a member");
        member.disk.fail_syncs_after(Some(self.dice.within(0, 3)));
        member.power_goes = Some(self.dice.draw());
        member.excused = true;
        self.later(now + 1_000, Undo::LeavePower(node));
    }

    fn power_loss_everywhere(&mut self, now: Tick, _: Tick, run: &mut Run) {
        run.record.note(now * 1_000, format_args!("fault: the power goes everywhere"));
        for node in run.members.keys().copied().collect::<Vec<_>>() {
            power_off(node, &mut self.dice, now, run);
        }
    }

    fn pause(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let node = self.victim(run);
        let how = self.still();
        let member = run.members.get_mut(&node).expect("it is a member");
        if let Some(process) = &mut member.process {
            run.record.note(now * 1_000, format_args!("fault: node {node} is {how:?}"));
            run.record.count(|coverage| match how {
                Still::Stopped => coverage.pauses += 1,
                Still::Suspended => coverage.suspends += 1,
            });
            process.stop(how, now);
            self.later(until, Undo::Wake(node));
        }
    }

    fn pause_client(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let client = self.client(run);
        let how = self.still();
        let member = run.clients.get_mut(&client).expect("it is a client");
        if let Some(process) = &mut member.process {
            run.record.note(now * 1_000, format_args!("fault: client {client} is {how:?}"));
            run.record.count(|coverage| match how {
                Still::Stopped => coverage.client_pauses += 1,
                Still::Suspended => coverage.client_suspends += 1,
            });
            process.stop(how, now);
            self.later(until, Undo::WakeClient(client));
        }
    }

    fn still(&mut self) -> Still {
        if self.dice.chance(30) { Still::Suspended } else { Still::Stopped }
    }

    fn kill_client(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let client = self.client(run);
        run.kill_client(client, now);
        self.later(until, Undo::StartClient(client));
    }

    fn slow_disk(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let node = self.victim(run);
        let delay = self.dice.millis(5, 400);
        run.record.note(now * 1_000, format_args!("fault: the disk of node {node} takes {delay:?}"));
        run.record.count(|coverage| coverage.slow_disks += 1);
        run.members[&node].disk.slow_down(delay);
        self.later(until, Undo::Disk(node));
    }

    fn full_disk(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.record.note(now * 1_000, format_args!("fault: the disk of node {node} is full"));
        run.record.count(|coverage| coverage.full_disks += 1);
        let member = run.members.get_mut(&node).expect("it is a member");
        member.disk.limit(Some(member.disk.used_bytes() + self.dice.within(0, 40_000)));
        member.excused = true;
        self.later(until, Undo::Disk(node));
    }

    fn failing_syncs(&mut self, now: Tick, until: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.record.note(now * 1_000, format_args!("fault: the disk of node {node} fails to sync"));
        run.record.count(|coverage| coverage.failed_syncs += 1);
        let member = run.members.get_mut(&node).expect("it is a member");
        member.disk.fail_syncs_after(Some(self.dice.within(0, 5)));
        member.excused = true;
        self.later(until, Undo::Disk(node));
    }

    fn wipe(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.wipe(node, now);
    }

    fn retire(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let node = self.victim(run);
        run.retire(node, now);
    }

    fn step_down(&mut self, now: Tick, _: Tick, run: &mut Run) {
        run.record.note(now * 1_000, format_args!("fault: the leader is asked to step down"));
        run.step_down(now);
    }

    fn revoke(&mut self, now: Tick, _: Tick, run: &mut Run) {
        let resource = *self.dice.pick(&RESOURCES);
        run.record.note(now * 1_000, format_args!("fault: {resource} is revoked"));
        run.revoke(resource, now);
    }

    fn apply(&mut self, undo: Undo, now: Tick, run: &mut Run) {
        run.record.note(now * 1_000, format_args!("undo: {undo:?}"));
        match undo {
            Undo::Link(from, to) => run.net.cut(from, to, false),
            Undo::Speed(from, to) => run.net.slow_down(from, to, 0),
            Undo::Wake(node) => {
                if let Some(process) = run.members.get_mut(&node).and_then(|member| member.process.as_mut()) {
                    process.wake(now);
                }
            }
            Undo::WakeClient(client) => {
                if let Some(process) = run.clients.get_mut(&client).and_then(|client| client.process.as_mut())
                {
                    process.wake(now);
                }
            }
            Undo::Disk(node) => {
                if let Some(member) = run.members.get_mut(&node) {
                    member.disk.slow_down(Duration::ZERO);
                    member.disk.limit(None);
                    member.disk.fail_syncs_after(None);
                }
            }
            Undo::StartClient(client) => run.start_client(client, now),
            Undo::LeavePower(node) => {
                let member = run.members.get_mut(&node).expect("it is a member");
                if member.power_goes.take().is_some() {
                    member.disk.fail_syncs_after(None);
                    power_off(node, &mut self.dice, now, run);
                }
            }
        }
    }
}

fn power_off(node: u64, dice: &mut Dice, now: Tick, run: &mut Run) {
    let seed = dice.draw();
    let restart_at = now + dice.within(100, 4_000);
    let member = run.members.get_mut(&node).expect("it is a member");
    if member.process.is_none() && member.restart_at.is_none() {
        // Out of service.
        return;
    }
    run.record.note(now * 1_000, format_args!("fault: node {node} loses its power"));
    let wreck = member.end(now, &run.net, Some(seed), Some(restart_at));
    run.record.count(|coverage| coverage.power_loss(&wreck));
}
