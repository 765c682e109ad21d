//! Damage to a node's files while it is down: once, in one run of three. It draws from its own dice, so the
//! other faults of a seed are the same with and without it.
//!
//! After a kill, every loss must be detected. After a power loss the note of what was synced is only a lower
//! bound, so then only files are damaged whose loss is detected anyway: removed or truncated ones.

use tenure_replica::SimDisk;

use crate::dice::Dice;
use crate::net::Tick;
use crate::run::Run;

/// What may be lost. The first four are noticed after a loss of power, too.
const KINDS: [&str; 8] = [
    "a segment",
    "the end of a segment",
    "all segments",
    "all segments and the note of what was synced",
    "a file for an older copy",
    "a part of a file to zeros",
    "a bit",
    "its snapshots",
];

/// Damages one node, once.
pub struct Damage {
    dice: Dice,
    /// When copies are taken that will be older by the time of the damage, and when that is.
    copy_at: Tick,
    at: Option<Tick>,
    node: Option<u64>,
    older: Vec<(String, Vec<u8>)>,
}

impl Damage {
    /// What this seed has in store between `from` and `until`.
    pub fn new(seed: u64, from: Tick, until: Tick) -> Damage {
        let mut dice = Dice::new(seed.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ 0xda4a);
        let wanted = dice.chance(33);
        // An even tick: time goes on by two at once.
        let at = dice.within(from + 500, until) & !1;
        let copy_at = dice.within(from, at - 100) & !1;
        Damage { dice, copy_at, at: wanted.then_some(at), node: None, older: Vec::new() }
    }

    /// It is `now`.
    pub fn tick(&mut self, now: Tick, run: &mut Run) {
        let Some(at) = self.at else { return };
        if now == self.copy_at {
            let nodes: Vec<u64> =
                run.members.iter().filter(|(_, member)| !member.leaving).map(|(node, _)| *node).collect();
            let node = *self.dice.pick(&nodes);
            let disk = &run.members[&node].disk;
            self.older = files(disk)
                .into_iter()
                .filter_map(|name| Some((disk.content(&name)?, name)))
                .map(|(content, name)| (name, content))
                .collect();
            self.node = Some(node);
        }
        let Some(node) = self.node.filter(|_| now >= at) else { return };
        self.at = None;
        // Not one that another fault has taken, nor one that has not got a log yet.
        let Some(member) = run.members.get(&node).filter(|member| !member.leaving) else { return };
        if !member.disk.names().iter().any(|name| name.ends_with(".wal")) {
            return;
        }
        let power = self.dice.chance(25).then(|| self.dice.draw());
        let kind = *self.dice.pick(if power.is_some() { &KINDS[..4] } else { &KINDS });
        let (dice, older) = (&mut self.dice, &self.older);
        run.damage(node, now, power, |disk| damage(kind, disk, dice, older));
    }
}

fn files(disk: &SimDisk) -> Vec<String> {
    let ours = |name: &String| name.ends_with(".wal") || name.ends_with(".snapshot");
    disk.names().into_iter().filter(ours).collect()
}

/// Damages a disk; what is lost.
fn damage(kind: &str, disk: &SimDisk, dice: &mut Dice, older: &[(String, Vec<u8>)]) -> String {
    let all = files(disk);
    let segments: Vec<&String> = all.iter().filter(|name| name.ends_with(".wal")).collect();
    let content = |name: &str| disk.content(name).expect("it was just listed");
    match kind {
        "a segment" => {
            let name = *dice.pick(&segments);
            disk.lose(name);
        }
        "the end of a segment" => {
            let name = *dice.pick(&segments);
            let bytes = content(name);
            disk.put(name, &bytes[..dice.within(0, bytes.len() as u64 - 1) as usize]);
        }
        "all segments" => segments.iter().for_each(|name| disk.lose(name)),
        "all segments and the note of what was synced" => {
            segments.iter().for_each(|name| disk.lose(name));
            disk.lose("synced");
        }
        "a file for an older copy" => {
            let there: Vec<_> = older.iter().filter(|(name, _)| all.contains(name)).collect();
            if !there.is_empty() {
                let (name, bytes) = *dice.pick(&there);
                disk.put(name, bytes);
            }
        }
        "a part of a file to zeros" => {
            let name = dice.pick(&all);
            let mut bytes = content(name);
            let from = dice.within(0, bytes.len() as u64 - 1) as usize;
            bytes[from..].fill(0);
            disk.put(name, &bytes);
        }
        "a bit" => {
            let name = dice.pick(&all);
            let bytes = content(name);
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            disk.damage(name, dice.within(0, used as u64) as usize, 1 << dice.within(0, 7));
        }
        _ => all.iter().filter(|name| name.ends_with(".snapshot")).for_each(|name| disk.lose(name)),
    }
    kind.to_owned()
}
