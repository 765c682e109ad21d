//! What `--help` says beyond the single arguments: the introduction, the groups, the examples.

use std::fmt::Write;

pub const ABOUT: &str = "\
Leases with fencing tokens: time-bounded, exclusive authority over named resources.

A holder takes a lease on a resource and gets a token, a number that only rises. While it renews its session the \
lease is its own; when it falls silent the lease ends after the TTL and the next waiter is granted it, under a \
higher token. Storage that checks the token refuses the late write of a holder that woke up too late.";

pub const AFTER: &str = "\
Examples:
  tenure serve                               a durable node on this machine, data in ./tenure-data
  tenure run settlement/cron -- ./settle.sh  run a command only while holding a lease
  tenure acquire settlement/cron --ttl 10s   take a lease; prints its token and its session
  tenure acquire settlement/cron --wait 1m   the same, but queue for at most a minute
  tenure explain settlement/cron             who holds it, what is left, who waits and why
  tenure kv put cursor 17 --resource settlement/cron --token 7
                                             write only under the newest token
  tenure leader payments/leader              who leads, or that nobody does
  tenure watch settlement/ --json | jq .     follow grants and ends as they happen
  tenure auth new pay --on pay/ --may hold   a credential; TENURE_CREDENTIAL or --credential names its file

Output:
  stdout is data, stderr is talk. Tables and colours are for terminals; a pipe gets tab-separated
  lines without a heading; --json gives one object per line. A closed pipe is no error.

Exit codes:
  0  done                   4  the lease or its session has ended
  1  anything else          5  stale token: a newer one has been granted
  2  wrong usage            6  no store could be reached, or none answered
  3  held by another        7  not found, or free
                            8  not allowed: no policy allows it, or the credential is not accepted
  130 and 143: an `acquire` was ended by SIGINT or SIGTERM, and has given back its place in the queue
  `run` and `elect` pass on the code of their command, and add 100 to these for their own failures.";

/// The groups in which commands are listed, in order; a build may leave some of them out.
pub const GROUPS: [(&str, &[&str]); 7] = [
    ("Hold", &["run", "elect", "acquire", "release", "transfer", "revoke", "session"]),
    ("Look", &["get", "leader", "ls", "watch", "events", "history", "explain", "top"]),
    ("Store", &["kv", "fence"]),
    ("Operate", &["serve", "cluster", "agent", "tune", "bench"]),
    ("Secure", &["auth", "policy"]),
    ("Learn", &["demo"]),
    ("Install", &["completions", "man"]),
];

/// The definition with a list of commands that is grouped by what one wants to do.
pub fn grouped(definition: clap::Command) -> clap::Command {
    let width = definition.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut commands = String::new();
    for (heading, names) in GROUPS {
        let mut built = names.iter().filter_map(|name| definition.find_subcommand(name)).peekable();
        if built.peek().is_none() {
            continue;
        }
        writeln!(commands, "{heading}:").expect("a string takes every write");
        for command in built {
            let name = command.get_name();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(commands, "  {name:width$}  {about}").expect("a string takes every write");
        }
        commands.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}Global options:\n{{options}}{{after-help}}\n"
    );
    definition.help_template(template)
}
