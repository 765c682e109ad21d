//! Damages to the files of a stopped node, many times, with a count of what came of it. What a node is, and
//! how it is asked, is left to whoever uses this: `damage.rs` here, on replicas, and `damage.rs` of the
//! end-to-end tests, on `tenure serve`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rounds from one set of files: forming a cluster takes longer than a round.
const ROUNDS_PER_CLUSTER: usize = 20;

/// Numbers drawn from a seed (SplitMix64).
pub struct Dice(u64);

impl Dice {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

/// A cluster whose nodes 1 and 2 wrote without node 3 and were killed. Its files are damaged, judged and put
/// back, many times.
pub trait Killed {
    /// Forms a cluster, has it write, and kills it.
    fn make(dice: &mut Dice) -> Self;

    /// Where the files of a node are.
    fn directory(&self, node: u64) -> PathBuf;

    /// Earlier contents of files of node 2.
    fn older(&self) -> &[(PathBuf, Vec<u8>)];

    /// Starts nodes 2 and 3 alone, says what became of what was acknowledged, and kills them.
    fn judge(&mut self) -> Outcome;
}

/// Notes what the files of a directory contain now.
pub fn keep_a_copy(directory: &Path, older: &mut Vec<(PathBuf, Vec<u8>)>) {
    for file in files(directory) {
        // A segment or a snapshot may be removed while we look.
        if let Ok(content) = fs::read(&file) {
            older.push((file, content));
        }
    }
}

/// Damages the files of node 2 in `TENURE_DAMAGE_ROUNDS` rounds drawn from `TENURE_DAMAGE_SEED`, prints what
/// came of it by kind, and panics if something acknowledged was lost.
pub fn damage_many<K: Killed>(rounds_usual: u64) {
    let setting =
        |name: &str, usual: u64| std::env::var(name).map_or(usual, |value| value.parse().expect("a number"));
    let (rounds, seed) =
        (setting("TENURE_DAMAGE_ROUNDS", rounds_usual) as usize, setting("TENURE_DAMAGE_SEED", 1));
    println!("{rounds} rounds, seed {seed}");
    let mut dice = Dice(seed);
    let scratch = std::env::temp_dir().join(format!("tenure-damage-{}-kept", std::process::id()));
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut lost = Vec::new();
    let (mut done, mut clusters) = (0, 0);
    while done < rounds {
        let mut cluster = K::make(&mut dice);
        clusters += 1;
        let _ = fs::remove_dir_all(&scratch);
        let kept = |node: u64| scratch.join(node.to_string());
        for node in [2, 3] {
            copy(&cluster.directory(node), &kept(node));
        }
        for _ in 0..ROUNDS_PER_CLUSTER.min(rounds - done) {
            for node in [2, 3] {
                let _ = fs::remove_dir_all(cluster.directory(node));
                copy(&kept(node), &cluster.directory(node));
            }
            let damaged = cluster.directory(2);
            // The five of the measure most often.
            let (kind, what) = loop {
                let kind = KINDS[if dice.below(4) > 0 { dice.below(5) } else { dice.below(KINDS.len()) }];
                if let Some(what) = damage(kind, &damaged, cluster.older(), &mut dice) {
                    break (kind, what);
                }
            };
            let count = counts.entry(kind).or_default();
            match cluster.judge() {
                Outcome::Refused(_) => count[0] += 1,
                Outcome::AllPresent => count[1] += 1,
                Outcome::Lost(how) => {
                    count[2] += 1;
                    println!("round {done}, cluster {clusters}: {what}: {how}");
                    lost.push(what);
                }
            }
            done += 1;
        }
    }
    println!("{:<24} {:>8} {:>12} {:>6}", "damage", "refused", "all present", "lost");
    for (kind, [refused, present, lost]) in &counts {
        println!("{kind:<24} {refused:>8} {present:>12} {lost:>6}");
    }
    let sum = |at: usize| counts.values().map(|count| count[at]).sum::<usize>();
    println!("{:<24} {:>8} {:>12} {:>6}", "all", sum(0), sum(1), sum(2));
    let _ = fs::remove_dir_all(&scratch);
    assert!(
        lost.is_empty(),
        "seed {seed}: something was lost, or nobody was told what to do, after {lost:#?}"
    );
    // Of a few rounds all may hit a segment that was prepared and not used.
    assert!(rounds < 16 || sum(0) > rounds / 3, "damages that hurt nobody prove nothing");
}

/// The files that may be damaged: log, snapshots, and the note of how far the log was synced.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.join("synced")];
    for part in ["log", "snapshots"] {
        let listed = fs::read_dir(directory.join(part)).into_iter().flatten().flatten();
        found.extend(listed.map(|entry| entry.path()));
    }
    found.retain(|file| file.is_file() && file.extension().is_none_or(|extension| extension != "tmp"));
    found.sort();
    found
}

const KINDS: [&str; 8] = [
    "delete",
    "truncate",
    "zero",
    "flip",
    "older copy",
    "empty log directory",
    "last segments deleted",
    "snapshot without log",
];

/// Damages a directory; what was done to what. Nothing, if there is nothing of the kind to damage.
fn damage(kind: &str, directory: &Path, older: &[(PathBuf, Vec<u8>)], dice: &mut Dice) -> Option<String> {
    let all = files(directory);
    let logs: Vec<_> = all.iter().filter(|file| file.extension().is_some_and(|it| it == "wal")).collect();
    let has_snapshot = all.iter().any(|file| file.extension().is_some_and(|it| it == "snapshot"));
    let file = all[dice.below(all.len())].clone();
    let mut content = fs::read(&file).expect("a file can be read");
    let described =
        |what: String| Some(format!("{}: {what}", file.strip_prefix(directory).unwrap().display()));
    match kind {
        "delete" => {
            fs::remove_file(&file).unwrap();
            described("deleted".into())
        }
        "truncate" => {
            let length = dice.below(content.len());
            content.truncate(length);
            fs::write(&file, content).unwrap();
            described(format!("cut to {length} bytes"))
        }
        "zero" => {
            // Where something stands, or all of it: most of a segment is zeros anyway.
            let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
            let from = if dice.below(4) == 0 { 0 } else { dice.below(used) };
            let until = if dice.below(2) == 0 { content.len() } else { from + 1 + dice.below(used - from) };
            content[from..until].fill(0);
            fs::write(&file, content).unwrap();
            described(format!("zeros from {from} to {until}"))
        }
        "flip" => {
            let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
            let (at, bit) = (dice.below(used), dice.below(8));
            content[at] ^= 1 << bit;
            fs::write(&file, content).unwrap();
            described(format!("bit {bit} of byte {at} flipped"))
        }
        "older copy" => {
            let name = |path: &Path| path.file_name().map(|name| name.to_owned());
            let copies: Vec<_> = older.iter().filter(|(path, _)| name(path) == name(&file)).collect();
            let (_, older) = copies.get(dice.below(copies.len().max(1)))?;
            fs::write(&file, older).unwrap();
            described("an older copy".into())
        }
        "empty log directory" => {
            logs.iter().for_each(|file| fs::remove_file(file).unwrap());
            Some("no segment is left".into())
        }
        "last segments deleted" => {
            // The very last one may be prepared and unused.
            let count = 2 + dice.below(logs.len().max(2) - 1);
            logs.iter().rev().take(count).for_each(|file| fs::remove_file(file).unwrap());
            Some(format!("the last {count} segments are gone"))
        }
        "snapshot without log" if has_snapshot => {
            logs.iter().for_each(|file| fs::remove_file(file).unwrap());
            let _ = fs::remove_file(directory.join("synced"));
            Some("no segment is left, and no note of what was synced".into())
        }
        _ => None,
    }
}

/// What became of what was acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Refused(String),
    AllPresent,
    Lost(String),
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy(&path, &to),
            false => assert!(fs::copy(&path, &to).is_ok(), "{} cannot be copied", path.display()),
        }
    }
}
