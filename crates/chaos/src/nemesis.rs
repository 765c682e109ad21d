//! What goes wrong, and for how long it stayed wrong for the holders.

use std::time::Duration;

use crate::cast::{Cast, HOLDERS_FROM};
use crate::story::Story;
use crate::time::now;

/// One fault that was injected.
#[derive(Clone, Debug)]
pub struct Injected {
    /// What.
    pub fault: Fault,
    /// When it began and ended.
    pub from: u64,
    /// See `from`.
    pub until: u64,
    /// The longest stretch without an answered operation from its beginning until everything was well again.
    pub silence: u64,
    /// Operations that ended meanwhile.
    pub operations: usize,
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
    LeaderAlone: "leader cut off from the other nodes",
    FollowerAlone: "a follower cut off from the other nodes",
    LeaderDeaf: "leader hears no other node (one way)",
    Bridge: "two nodes do not hear each other, both hear the rest",
    HolderCutOff: "a holder cut off from all nodes",
    HolderFromLeader: "a holder cut off from the leader alone",
    LeaderStopped: "leader stopped (SIGSTOP)",
    FollowersStopped: "all followers stopped (SIGSTOP)",
    HolderStopped: "a holder stopped (SIGSTOP)",
    LeaderKilled: "leader killed (SIGKILL) and started again",
    AllKilled: "all nodes killed (SIGKILL) and started again",
    HolderKilled: "a holder killed (SIGKILL) and started again",
    PacketLoss: "a node loses 30 % of what it is sent",
}

/// Injects faults one after another.
pub struct Nemesis {
    seed: u64,
    turn: usize,
}

impl Nemesis {
    /// Faults in an order that the seed decides.
    pub fn new(seed: u64) -> Nemesis {
        Nemesis { seed, turn: 0 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Injects the next fault, undoes it, and waits until holders are answered again.
    pub fn strike(&mut self, cast: &mut Cast, story: &Story) -> Result<Injected, String> {
        // Every kind in turn, so that a short run has seen as many as it can; the lengths are chance.
        let fault = Fault::ALL[self.turn % Fault::ALL.len()];
        self.turn += 1;
        let length = Duration::from_millis(500 + self.draw(5_500));
        let (from, began_with) = (now(), story.progress().0);
        let mut watch = Watch::new(story);
        self.apply(fault, cast, &mut watch, length)?;
        let until = now();
        // Well again: something was answered that was asked after the fault.
        let healed_by = until + 30_000_000;
        while story.progress().1.is_none_or(|last| last < until + 300_000) && now() < healed_by {
            watch.rest(Duration::from_millis(50));
        }
        watch.rest(Duration::from_millis(500 + self.draw(1_500)));
        let operations = story.progress().0 - began_with;
        Ok(Injected { fault, from, until, silence: watch.longest, operations })
    }

    fn apply(
        &mut self,
        fault: Fault,
        cast: &mut Cast,
        watch: &mut Watch,
        length: Duration,
    ) -> Result<(), String> {
        let leader = cast.leader().unwrap_or(0);
        let others: Vec<usize> = (0..cast.nodes.len()).filter(|node| *node != leader).collect();
        let follower = others[self.draw(others.len() as u64) as usize];
        let holder = self.draw(cast.holders.len() as u64) as usize;
        let hosts: Vec<u32> = cast.nodes.iter().map(|node| node.host).collect();
        let holder_host = HOLDERS_FROM + holder as u32;
        let heal = |cast: &Cast, which: &[u32]| which.iter().try_for_each(|host| cast.net.heal(*host));
        match fault {
            Fault::LeaderAlone | Fault::FollowerAlone => {
                let alone = if fault == Fault::LeaderAlone { leader } else { follower };
                let rest: Vec<u32> = hosts.iter().copied().filter(|host| *host != hosts[alone]).collect();
                cast.net.cut(hosts[alone], &rest)?;
                rest.iter().try_for_each(|host| cast.net.cut(*host, &[hosts[alone]]))?;
                watch.rest(length);
                heal(cast, &hosts)
            }
            Fault::LeaderDeaf => {
                let rest: Vec<u32> = others.iter().map(|other| hosts[*other]).collect();
                cast.net.cut(hosts[leader], &rest)?;
                watch.rest(length);
                heal(cast, &hosts)
            }
            Fault::Bridge => {
                cast.net.cut(hosts[leader], &[hosts[follower]])?;
                cast.net.cut(hosts[follower], &[hosts[leader]])?;
                watch.rest(length);
                heal(cast, &hosts)
            }
            Fault::HolderCutOff | Fault::HolderFromLeader => {
                let from = if fault == Fault::HolderCutOff { hosts.clone() } else { vec![hosts[leader]] };
                cast.net.cut(holder_host, &from)?;
                from.iter().try_for_each(|host| cast.net.cut(*host, &[holder_host]))?;
                watch.rest(length);
                heal(cast, &hosts)?;
                heal(cast, &[holder_host])
            }
            Fault::LeaderStopped => {
                cast.nodes[leader].stop();
                watch.rest(length);
                cast.nodes[leader].go_on();
                Ok(())
            }
            Fault::FollowersStopped => {
                others.iter().for_each(|other| cast.nodes[*other].stop());
                watch.rest(length);
                others.iter().for_each(|other| cast.nodes[*other].go_on());
                Ok(())
            }
            Fault::HolderStopped => {
                cast.holders[holder].stop();
                watch.rest(length);
                cast.holders[holder].go_on();
                Ok(())
            }
            Fault::LeaderKilled => {
                cast.nodes[leader].kill();
                watch.rest(length);
                cast.start_node(leader)
            }
            Fault::AllKilled => {
                cast.nodes.iter_mut().for_each(|node| node.kill());
                watch.rest(length);
                (0..cast.nodes.len()).try_for_each(|node| cast.start_node(node))
            }
            Fault::HolderKilled => {
                cast.holders[holder].kill();
                watch.rest(length);
                cast.start_holder(holder)
            }
            Fault::PacketLoss => {
                cast.net.lose(hosts[leader], 30)?;
                watch.rest(length);
                heal(cast, &hosts)
            }
        }
    }
}

/// Watches how long nobody is answered.
struct Watch<'a> {
    story: &'a Story,
    longest: u64,
}

impl<'a> Watch<'a> {
    fn new(story: &'a Story) -> Watch<'a> {
        Watch { story, longest: 0 }
    }

    fn rest(&mut self, length: Duration) {
        let until = now() + length.as_micros() as u64;
        while now() < until {
            std::thread::sleep(Duration::from_millis(20).min(length));
            if let Some(last) = self.story.progress().1 {
                self.longest = self.longest.max(now().saturating_sub(last));
            }
        }
    }
}
