//! The faults: which ones, in which order, on which processes and for how long. All of it is drawn from the
//! seed, except who leads at that moment. One fault, or two at a time; then everything is repaired, and the
//! next one follows.

use std::time::Duration;

use tenure_e2e::Dice;

use crate::managed::{Clocks, clock_faker};
use crate::recorder::Recorder;
use crate::testbed::{Role, Testbed};
use crate::time::{Patience, STOOD_STILL, now};

/// One fault that was injected.
#[derive(Clone, Debug)]
pub struct Injected {
    /// What.
    pub fault: Fault,
    /// Whom it struck, in words.
    pub whom: String,
    /// When it began.
    pub from: u64,
    /// When everything had been put right.
    pub until: u64,
    /// When somebody was answered who had asked after that, and the next fault could come.
    pub well: u64,
    /// What it was combined with.
    pub beside: Option<Fault>,
    /// The hosts that it touched: a holder there was not well.
    pub touched: Vec<usize>,
}

macro_rules! faults {
    ($($name:ident: $word:literal,)*) => {
        /// The kinds of faults.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $(#[doc = $word] $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// In words.
            pub fn word(self) -> &'static str {
                match self { $(Fault::$name => $word,)* }
            }
        }
    };
}

faults! {
    LeaderAlone: "leader cut off from all other nodes",
    Split: "a minority with the leader, and half of the holders, cut off from the rest",
    FollowerAlone: "a follower cut off from all other nodes",
    LeaderDeaf: "leader receives from no other node (one way)",
    LeaderMute: "no other node receives from the leader (one way)",
    Bridge: "two halves that reach each other only through one node",
    HolderCutOff: "a holder cut off from all nodes",
    HolderFromLeader: "all holders cut off from the leader alone",
    LeaderStopped: "leader stopped (SIGSTOP)",
    FollowersStopped: "all followers stopped (SIGSTOP)",
    HolderStopped: "a holder stopped (SIGSTOP)",
    RunStopped: "`tenure run` alone stopped (SIGSTOP)",
    AgentStopped: "host agent stopped (SIGSTOP)",
    LeaderKilled: "leader killed (SIGKILL), later started again",
    FollowerKilled: "a follower killed (SIGKILL), later started again",
    AllKilled: "all nodes killed (SIGKILL), later started again",
    HolderKilled: "a holder killed (SIGKILL), later started again",
    RunKilled: "`tenure run` killed (SIGKILL), later started again",
    AgentKilled: "host agent killed (SIGKILL), later started again",
    LeaderRestarted: "leader restarted (SIGTERM, and at once again)",
    Wiped: "a voter's data deleted; replaced by remove and add",
    Membership: "a node added, then one removed",
    NodeClockRate: "leader's clocks 200 ppm fast, a follower's 200 ppm slow",
    HolderClockRate: "one holder's clocks 200 ppm slow, another's 200 ppm fast",
    HolderClockSlow: "a holder's clocks at half speed (beyond rho: only fences help)",
    CalendarSteps: "calendar of the leader and of a holder set back and forth by hours",
    PacketLoss: "leader loses 30 % of what it is sent",
    Throttled: "leader sends at most 256 kbit/s",
    FullDisk: "a node's disk full",
}

/// Kinds that change who is a member: one of them at a time.
const RECONFIGURES: [Fault; 2] = [Fault::Wiped, Fault::Membership];

/// Draws faults.
pub struct Nemesis {
    dice: Dice,
    /// Kinds that are yet to come before any comes again.
    to_come: Vec<Fault>,
    strikes: u64,
}

/// What the seed has decided about one strike.
pub struct Strike {
    /// One fault, or two.
    pub faults: Vec<Fault>,
    length: Duration,
    apart: Duration,
    rest: Duration,
    dice: Dice,
}

impl Nemesis {
    /// Faults in an order that the seed decides.
    pub fn new(seed: u64) -> Nemesis {
        Nemesis { dice: Dice::seeded(seed), to_come: Vec::new(), strikes: 0 }
    }

    fn draw_kind(&mut self) -> Fault {
        if self.to_come.is_empty() {
            self.to_come = Fault::ALL.to_vec();
        }
        let which = self.dice.between(0, self.to_come.len() as u64) as usize;
        self.to_come.swap_remove(which)
    }

    /// Draws the next strike. Every third is of two faults.
    pub fn draw(&mut self) -> Strike {
        self.strikes += 1;
        let mut faults = vec![self.draw_kind()];
        if self.strikes.is_multiple_of(3) {
            let second = self.draw_kind();
            if RECONFIGURES.contains(&second) && RECONFIGURES.contains(&faults[0]) {
                // It comes another time.
                self.to_come.push(second);
            } else if second != faults[0] {
                faults.push(second);
            }
        }
        let mut millis = |low, high| Duration::from_millis(self.dice.between(low, high));
        let (length, apart, rest) = (millis(500, 6_500), millis(0, 1_500), millis(300, 1_500));
        Strike { faults, length, apart, rest, dice: self.dice.split() }
    }
}

impl Strike {
    /// Breaks, waits, puts right, and waits until somebody is answered; what was injected.
    pub fn carry_out(mut self, testbed: &mut Testbed, recorder: &Recorder) -> Result<Vec<Injected>, String> {
        let mut injected: Vec<Injected> = Vec::new();
        for (index, fault) in self.faults.clone().into_iter().enumerate() {
            if index > 0 {
                rest(testbed, self.apart)?;
            }
            let from = now();
            let Some((whom, touched)) = inject(fault, testbed, recorder, &mut self.dice)? else { continue };
            let beside = None;
            injected.push(Injected { fault, whom, from, until: 0, well: 0, beside, touched });
        }
        if let [first, second] = &mut injected[..] {
            (first.beside, second.beside) = (Some(second.fault), Some(first.fault));
        }
        let half = self.length / 2;
        rest(testbed, half)?;
        testbed.step_calendars("-86400");
        rest(testbed, half)?;
        testbed.mend()?;
        let until = now();
        let mut patience = Patience::of_seconds(60);
        while recorder.answered_last().is_none_or(|last| last < until + 200_000) {
            if !patience.lasts() {
                return Err(format!("no request was answered within 60 s after {}", self.faults[0].word()));
            }
            rest(testbed, Duration::from_millis(20))?;
        }
        rest(testbed, self.rest)?;
        let well = now();
        injected.iter_mut().for_each(|injected| (injected.until, injected.well) = (until, well));
        Ok(injected)
    }
}

/// Waits, and looks after those who end in their own time meanwhile.
pub fn rest(testbed: &mut Testbed, length: Duration) -> Result<(), String> {
    let until = now() + length.as_micros() as u64;
    while now() < until {
        let before = now();
        std::thread::sleep(Duration::from_millis(20).min(length));
        let after = now();
        if after - before > STOOD_STILL {
            testbed.stood_still.push((before, after));
        }
        testbed.tend()?;
    }
    Ok(())
}

/// Breaks something: whom it struck, and the hosts that it touched. `None`: it cannot be done here, or now.
fn inject(
    fault: Fault,
    testbed: &mut Testbed,
    recorder: &Recorder,
    dice: &mut Dice,
) -> Result<Option<(String, Vec<usize>)>, String> {
    let leader = testbed.leader().unwrap_or(0);
    let others: Vec<usize> = (0..testbed.nodes.len()).filter(|node| *node != leader).collect();
    let mut one_of = |list: &[usize]| list[dice.between(0, list.len() as u64) as usize];
    let follower = one_of(&others);
    let mut holders = testbed.of(Role::Library);
    holders.extend(testbed.of(Role::ThroughAgent));
    let holder = one_of(&holders);
    let library = testbed.of(Role::Library);
    let writer = one_of(&library);
    let slots: Vec<usize> = testbed.nodes.iter().map(|node| node.managed.host).collect();
    let slots_but = |but: usize| slots.iter().copied().filter(|slot| *slot != slots[but]).collect::<Vec<_>>();
    let node = |testbed: &Testbed, index: usize| format!("node {}", testbed.nodes[index].number);
    let managed = |testbed: &Testbed, index: usize| format!("process {}", testbed.players[index].1.process);
    let host = |testbed: &Testbed, index: usize| testbed.players[index].1.host;
    let mut client_hosts: Vec<usize> = testbed.players.iter().map(|(_, managed)| managed.host).collect();
    client_hosts.sort_unstable();
    client_hosts.dedup();
    let nobody = Vec::new();
    let struck = match fault {
        Fault::LeaderAlone | Fault::FollowerAlone => {
            let alone = if fault == Fault::LeaderAlone { leader } else { follower };
            testbed.lan.part(&[slots[alone]], &slots_but(alone));
            (node(testbed, alone), nobody)
        }
        Fault::Split => {
            let mut minority = vec![slots[leader]];
            minority.extend(others.iter().map(|other| slots[*other]).take((testbed.nodes.len() - 1) / 2 - 1));
            let with: Vec<usize> = client_hosts.iter().copied().step_by(2).collect();
            let these: Vec<usize> = minority.iter().chain(&with).copied().collect();
            let those: Vec<usize> =
                testbed.all_hosts().into_iter().filter(|host| !these.contains(host)).collect();
            testbed.lan.part(&these, &those);
            (format!("{} nodes of {}", minority.len(), testbed.nodes.len()), client_hosts)
        }
        Fault::LeaderDeaf => {
            testbed.lan.deafen(slots[leader], &slots_but(leader));
            (node(testbed, leader), nobody)
        }
        Fault::LeaderMute => {
            slots_but(leader).iter().for_each(|slot| testbed.lan.deafen(*slot, &[slots[leader]]));
            (node(testbed, leader), nobody)
        }
        Fault::Bridge => {
            let rest: Vec<usize> = slots_but(follower);
            let (these, those) = rest.split_at(rest.len() / 2);
            testbed.lan.part(these, those);
            (format!("{} reaches both halves", node(testbed, follower)), nobody)
        }
        Fault::HolderCutOff => {
            let host = host(testbed, holder);
            testbed.lan.part(&[host], &slots);
            (managed(testbed, holder), vec![host])
        }
        Fault::HolderFromLeader => {
            testbed.lan.part(&[slots[leader]], &client_hosts);
            // They reach all other nodes, which pass on what they ask: nobody may lose anything by it.
            (node(testbed, leader), nobody)
        }
        Fault::LeaderStopped => {
            testbed.nodes[leader].managed.stop();
            (node(testbed, leader), nobody)
        }
        Fault::FollowersStopped => {
            others.iter().for_each(|other| testbed.nodes[*other].managed.stop());
            (format!("{} nodes", others.len()), nobody)
        }
        Fault::HolderStopped => {
            testbed.players[holder].1.stop();
            (managed(testbed, holder), vec![host(testbed, holder)])
        }
        Fault::RunStopped => {
            let run = testbed.of(Role::Run)[0];
            testbed.players[run].1.stop();
            (managed(testbed, run), vec![host(testbed, run)])
        }
        Fault::AgentStopped | Fault::AgentKilled => {
            let agent = testbed.of(Role::Agent)[0];
            match fault {
                Fault::AgentStopped => testbed.players[agent].1.stop(),
                _ => testbed.kill_player(agent),
            }
            (managed(testbed, agent), nobody)
        }
        Fault::LeaderKilled | Fault::FollowerKilled => {
            let victim = if fault == Fault::LeaderKilled { leader } else { follower };
            testbed.nodes[victim].managed.kill();
            (node(testbed, victim), nobody)
        }
        Fault::AllKilled => {
            testbed.nodes.iter_mut().for_each(|node| node.managed.kill());
            (format!("{} nodes", testbed.nodes.len()), nobody)
        }
        Fault::HolderKilled => {
            let struck = (managed(testbed, holder), vec![host(testbed, holder)]);
            testbed.kill_player(holder);
            struck
        }
        Fault::RunKilled => {
            let run = testbed.of(Role::Run)[0];
            let struck = (managed(testbed, run), vec![host(testbed, run)]);
            testbed.kill_player(run);
            struck
        }
        Fault::LeaderRestarted => {
            testbed.nodes[leader].managed.go_on();
            testbed.nodes[leader].managed.terminate();
            testbed.start_node(leader, Clocks::Right)?;
            (node(testbed, leader), nobody)
        }
        Fault::Wiped => {
            let whom = node(testbed, follower);
            testbed.wipe(follower)?;
            (whom, nobody)
        }
        Fault::Membership => {
            testbed.grow()?;
            (format!("node {} added", testbed.nodes[testbed.nodes.len() - 1].number), nobody)
        }
        Fault::NodeClockRate | Fault::HolderClockRate | Fault::HolderClockSlow | Fault::CalendarSteps
            if clock_faker().is_none() =>
        {
            return Ok(None);
        }
        Fault::NodeClockRate => {
            for (victim, rate) in [(leader, 1.0002), (follower, 0.9998)] {
                testbed.nodes[victim].managed.kill();
                testbed.start_node(victim, Clocks::Rate(rate))?;
            }
            (format!("{} and {}", node(testbed, leader), node(testbed, follower)), nobody)
        }
        Fault::HolderClockRate => {
            let mut hosts = Vec::new();
            for (victim, rate) in library.iter().zip([0.9998, 1.0002]) {
                testbed.kill_player(*victim);
                testbed.start_player(*victim, Clocks::Rate(rate))?;
                hosts.push(host(testbed, *victim));
            }
            (format!("{} holders", hosts.len()), hosts)
        }
        Fault::HolderClockSlow => {
            testbed.kill_player(writer);
            testbed.start_player(writer, Clocks::Rate(0.5))?;
            recorder.excuse(testbed.players[writer].1.process);
            (managed(testbed, writer), vec![host(testbed, writer)])
        }
        Fault::CalendarSteps => {
            testbed.step_calendars("+0");
            let clocks = Clocks::Calendar(testbed.calendar());
            testbed.nodes[leader].managed.kill();
            testbed.start_node(leader, clocks.clone())?;
            testbed.kill_player(writer);
            testbed.start_player(writer, clocks)?;
            testbed.step_calendars("+86400");
            (
                format!("{} and {}", node(testbed, leader), managed(testbed, writer)),
                vec![host(testbed, writer)],
            )
        }
        // What a network loses, holders may not receive in time.
        Fault::PacketLoss => {
            testbed.lan.lose(slots[leader], 30);
            (node(testbed, leader), client_hosts)
        }
        Fault::Throttled => {
            testbed.lan.throttle(slots[leader], 256);
            (node(testbed, leader), client_hosts)
        }
        Fault::FullDisk => {
            let fillable = testbed.fillable();
            let Some(victim) = fillable.first().copied() else { return Ok(None) };
            if !testbed.fill(victim) {
                return Ok(None);
            }
            (node(testbed, victim), nobody)
        }
    };
    Ok(Some(struck))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn drawn(seed: u64, strikes: usize) -> Vec<(Vec<Fault>, Duration)> {
        let mut nemesis = Nemesis::new(seed);
        (0..strikes).map(|_| nemesis.draw()).map(|strike| (strike.faults, strike.length)).collect()
    }

    #[test]
    fn a_seed_draws_the_same_faults_again_and_another_seed_others() {
        assert_eq!(drawn(7, 40), drawn(7, 40));
        assert_ne!(drawn(7, 40), drawn(8, 40));
    }

    #[test]
    fn every_kind_comes_before_any_comes_a_third_time() {
        let faults: Vec<Fault> =
            drawn(1, Fault::ALL.len()).into_iter().flat_map(|(faults, _)| faults).collect();
        let kinds: BTreeSet<Fault> = faults.iter().copied().collect();
        assert_eq!(kinds.len(), Fault::ALL.len(), "{faults:?}");
    }

    #[test]
    fn two_changes_of_the_membership_never_meet() {
        for (faults, _) in (0..50).flat_map(|seed| drawn(seed, 60)) {
            assert!(faults.iter().filter(|fault| RECONFIGURES.contains(fault)).count() < 2, "{faults:?}");
        }
    }
}
