//! What goes wrong, drawn from the seed: one fault after another, several at once, each undone after a while. When the faults
//! are over everything is undone at once.

use std::time::Duration;

use crate::dice::Dice;
use crate::net::{HostId, Tick};
use crate::run::Run;

/// Something to be undone later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Undo {
    Link(HostId, HostId),
    Speed(HostId, HostId),
    Wake(u64),
    WakeClient(u32),
    Disk(u64),
    StartClient(u32),
}

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
            apply(undo, now, run);
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
            apply(undo, now, run);
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
            run.members.iter().filter(|(_, member)| !member.wiped).map(|(node, _)| *node).collect();
        *self.dice.pick(&nodes)
    }

    fn client(&mut self, run: &Run) -> u32 {
        // Client 0 is left alone: it shows that a healthy holder keeps what it has.
        let clients: Vec<u32> = run.people.keys().copied().filter(|process| *process != 0).collect();
        *self.dice.pick(&clients)
    }

    fn break_something(&mut self, now: Tick, run: &mut Run) {
        let until = now + self.length();
        let at = now * 1_000;
        match self.dice.within(0, 99) {
            0..=11 => self.partition(now, until, run),
            12..=17 => {
                let (from, to) = (self.victim(run), self.victim(run));
                if from != to {
                    run.record.note(at, format_args!("fault: one way {from} to {to}"));
                    run.record.count(|coverage| coverage.one_way_cuts += 1);
                    self.cut(from as HostId, to as HostId, until, run);
                }
            }
            18..=29 => {
                let client = self.client(run);
                let all = self.dice.chance(40);
                let only = self.victim(run);
                let one_way = self.dice.chance(30);
                run.record
                    .note(at, format_args!("fault: client {client} cut off, all={all} one_way={one_way}"));
                run.record.count(|coverage| coverage.cuts += 1);
                let host = run.people[&client].host;
                for node in run.members.keys().copied().collect::<Vec<_>>() {
                    if all || node == only {
                        self.cut(node as HostId, host, until, run);
                        if !one_way {
                            self.cut(host, node as HostId, until, run);
                        }
                    }
                }
            }
            30..=37 => {
                let (from, to) = (self.victim(run), self.victim(run));
                let slower = self.dice.within(5, 400);
                run.record.note(at, format_args!("fault: {from} to {to} slower by {slower} ms"));
                run.record.count(|coverage| coverage.slow_links += 1);
                run.net.slow_down(from as HostId, to as HostId, slower);
                self.later(until, Undo::Speed(from as HostId, to as HostId));
            }
            38..=49 => {
                let node = self.victim(run);
                self.kill(node, now, run);
            }
            50..=51 => {
                run.record.note(at, format_args!("fault: the power goes everywhere"));
                for node in run.members.keys().copied().collect::<Vec<_>>() {
                    self.power_off(node, now, run);
                }
            }
            52..=63 => {
                let node = self.victim(run);
                if let Some(process) = run.members.get_mut(&node).and_then(|member| member.process.as_mut()) {
                    run.record.note(at, format_args!("fault: node {node} stops"));
                    run.record.count(|coverage| coverage.pauses += 1);
                    process.stop(true);
                    self.later(until, Undo::Wake(node));
                }
            }
            64..=75 => {
                let client = self.client(run);
                if let Some(process) = run.people.get_mut(&client).and_then(|person| person.process.as_mut())
                {
                    run.record.note(at, format_args!("fault: client {client} stops"));
                    run.record.count(|coverage| coverage.client_pauses += 1);
                    process.stop(true);
                    self.later(until, Undo::WakeClient(client));
                }
            }
            76..=81 => {
                let client = self.client(run);
                run.kill_client(client, now);
                self.later(until, Undo::StartClient(client));
            }
            82..=89 => {
                let node = self.victim(run);
                let delay = self.dice.millis(5, 400);
                run.record.note(at, format_args!("fault: the disk of node {node} takes {delay:?}"));
                run.record.count(|coverage| coverage.slow_disks += 1);
                run.members[&node].disk.slow_down(delay);
                self.later(until, Undo::Disk(node));
            }
            90..=94 => {
                let node = self.victim(run);
                let full = self.dice.chance(50);
                run.record.note(at, format_args!("fault: the disk of node {node} fails, full={full}"));
                run.record.count(|coverage| coverage.failed_disks += 1);
                let member = run.members.get_mut(&node).expect("it is a member");
                if full {
                    member.disk.limit(Some(member.disk.used_bytes() + self.dice.within(0, 40_000)));
                } else {
                    member.disk.fail_syncs_after(Some(self.dice.within(0, 5)));
                }
                member.excused = true;
                self.later(until, Undo::Disk(node));
            }
            95 | 96 => {
                let node = self.victim(run);
                run.wipe(node, now);
            }
            _ => {
                run.record.note(at, format_args!("fault: the leader is asked to step down"));
                run.record.count(|coverage| coverage.step_downs += 1);
                run.step_down(now);
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
            // Two do not hear each other, and both hear the rest.
            vec![alone]
        } else {
            nodes.iter().copied().filter(|node| *node == alone || self.dice.chance(25)).collect()
        };
        let there: Vec<u64> = match bridge {
            true => nodes.iter().copied().find(|node| *node != alone).into_iter().collect(),
            false => nodes.iter().copied().filter(|node| !here.contains(node)).collect(),
        };
        run.record.note(now * 1_000, format_args!("fault: partition {here:?} from {there:?}"));
        run.record.count(|coverage| coverage.cuts += 1);
        let clients: Vec<HostId> =
            run.people.iter().filter(|(process, _)| **process != 0).map(|(_, person)| person.host).collect();
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

    fn kill(&mut self, node: u64, now: Tick, run: &mut Run) {
        if self.dice.chance(50) {
            return self.power_off(node, now, run);
        }
        run.record.note(now * 1_000, format_args!("fault: node {node} is killed"));
        run.record.count(|coverage| coverage.kills += 1);
        let restart_at = now + self.dice.within(10, 3_000);
        let member = run.members.get_mut(&node).expect("it is a member");
        member.end(now, &run.net, None, Some(restart_at));
    }

    fn power_off(&mut self, node: u64, now: Tick, run: &mut Run) {
        run.record.note(now * 1_000, format_args!("fault: node {node} loses its power"));
        run.record.count(|coverage| coverage.power_losses += 1);
        let seed = self.dice.draw();
        let restart_at = now + self.dice.within(100, 4_000);
        let member = run.members.get_mut(&node).expect("it is a member");
        member.end(now, &run.net, Some(seed), Some(restart_at));
    }
}

fn apply(undo: Undo, now: Tick, run: &mut Run) {
    run.record.note(now * 1_000, format_args!("undo: {undo:?}"));
    match undo {
        Undo::Link(from, to) => run.net.cut(from, to, false),
        Undo::Speed(from, to) => run.net.slow_down(from, to, 0),
        Undo::Wake(node) => {
            if let Some(process) = run.members.get_mut(&node).and_then(|member| member.process.as_mut()) {
                process.stop(false);
            }
        }
        Undo::WakeClient(client) => {
            if let Some(process) = run.people.get_mut(&client).and_then(|person| person.process.as_mut()) {
                process.stop(false);
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
    }
}
