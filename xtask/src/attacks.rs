//! `cargo xtask attacks`: tries every attack that must fail, and prints what came of each. The list is
//! `xtask/attacks.txt`; an attack without a test is shown as missing, and is a failure like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};

use crate::workspace;

const LIST: &str = include_str!("../attacks.txt");
const HELP: &str = "\
cargo xtask attacks [GROUP…] [--list]

Tries every attack of the list, or those of the groups named, and prints a table. --list only prints it.
Groups: peer, tls, credentials, authorization, sessions, web, exhaustion, postgresql, agent.";

/// One line of the list.
struct Attack {
    group: &'static str,
    name: &'static str,
    /// The package, the test program and the test; none if nobody has written it yet.
    test: Option<(&'static str, &'static str, &'static str)>,
}

pub fn run(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let only_list = arguments.iter().any(|argument| argument == "--list");
    let groups: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
    let all = match attacks(LIST) {
        Ok(all) => all,
        Err(why) => {
            eprintln!("xtask/attacks.txt: {why}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(unknown) = groups.iter().find(|group| !all.iter().any(|attack| attack.group == **group)) {
        eprintln!("there is no group {unknown}\n\n{HELP}");
        return ExitCode::from(2);
    }
    let wanted: Vec<&Attack> =
        all.iter().filter(|attack| groups.is_empty() || groups.contains(&attack.group)).collect();
    let passed = if only_list { BTreeSet::new() } else { try_all(&wanted) };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let width = wanted.iter().map(|attack| attack.name.chars().count()).max().unwrap_or(0);
    for attack in &wanted {
        let result = match attack.test {
            None => "MISSING",
            Some(_) if only_list => "",
            Some(test) if passed.contains(&test) => "failed, as it must",
            Some(_) => "NOT STOPPED, or the test did not run",
        };
        *counts.entry(result).or_default() += 1;
        let padding = " ".repeat(width - attack.name.chars().count());
        let test = attack.test.map_or("-", |(_, _, test)| test);
        println!("{:<13}  {}{padding}  {result:<18}  {test}", attack.group, attack.name);
    }
    let stopped = counts.get("failed, as it must").copied().unwrap_or(0);
    println!("\n{stopped} of {} attacks were tried and failed", wanted.len());
    if only_list || stopped == wanted.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the tests, one program after the other, and gives those that passed.
fn try_all(attacks: &[&Attack]) -> BTreeSet<(&'static str, &'static str, &'static str)> {
    let mut programs: BTreeMap<(&str, &str), Vec<&'static str>> = BTreeMap::new();
    for (package, program, test) in attacks.iter().filter_map(|attack| attack.test) {
        programs.entry((package, program)).or_default().push(test);
    }
    let mut passed = BTreeSet::new();
    for ((package, program), tests) in programs {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(workspace::root()).args(["test", "--quiet", "--package", package]);
        if package == "tenure-fence" {
            cargo.args(["--features", "postgres"]);
        }
        match program {
            "lib" => cargo.arg("--lib"),
            file => cargo.args(["--test", file]),
        };
        // One line for each test, with its whole name.
        cargo.args(["--", "--exact", "--format", "pretty"]).args(&tests);
        eprintln!("trying {} attacks in {package} ({program})", tests.len());
        let output = match cargo.output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("cargo could not be started: {error}");
                continue;
            }
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let ok = passed_in(&said);
        if ok.len() < tests.len() {
            eprintln!("{}{said}", String::from_utf8_lossy(&output.stderr));
        }
        for attack in attacks.iter().filter_map(|attack| attack.test) {
            if (attack.0, attack.1) == (package, program) && ok.contains(attack.2) {
                passed.insert(attack);
            }
        }
    }
    passed
}

/// The tests that passed, as the test program says.
fn passed_in(said: &str) -> BTreeSet<&str> {
    said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok")).collect()
}

/// Reads the list.
fn attacks(text: &'static str) -> Result<Vec<Attack>, String> {
    let mut all: Vec<Attack> = Vec::new();
    for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let fields: Vec<&'static str> = text.split('|').map(str::trim).collect();
        let [group, name, package, program, test] = fields[..] else {
            return Err(format!("line {line} has {} fields, not 5", fields.len()));
        };
        if all.iter().any(|other| (other.group, other.name) == (group, name)) {
            return Err(format!("line {line}: {group} has two attacks called {name}"));
        }
        all.push(Attack { group, name, test: (test != "-").then_some((package, program, test)) });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attacks of the design, counted by group: one that is taken off the list is missed here.
    #[test]
    fn the_list_has_every_attack() {
        let all = attacks(LIST).unwrap();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        all.iter().for_each(|attack| *counts.entry(attack.group).or_default() += 1);
        let expected = [
            ("agent", 4),
            ("authorization", 14),
            ("credentials", 16),
            ("exhaustion", 9),
            ("peer", 10),
            ("postgresql", 8),
            ("sessions", 10),
            ("tls", 8),
            ("web", 7),
        ];
        assert_eq!(counts, BTreeMap::from(expected));
        assert_eq!(all.len(), 86);
    }

    #[test]
    fn only_tests_that_passed_count() {
        let said = "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest a::d ... ignored\n";
        assert_eq!(passed_in(said), BTreeSet::from(["a::b"]));
    }
}
