//! `redlock`: a majority of independent Redis stores as a lock, reproduced on real `redis-server` processes:
//! a pause, a store that loses its data, and a clock that is set. Each leads to two holders, and because the
//! lock's value is a random number, no storage can tell which holder is newer.
//!
//! The algorithm is the documented one: the same key on all stores, `SET NX PX`, a majority, and the validity
//! time that is left after acquiring, minus 1 % and 2 ms for drift.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::narrator::{Narrator, seconds};
use crate::role_process::RoleProcess;
use crate::roles::{Role, millis, say};
use crate::testbed::{Folder, Process, free_addresses};
use crate::{DemoError, Options, Seen, moment, pause};

const STORES: usize = 5;
const LOCK: &str = "settlement:lock";
const STORAGE: &str = "ledger:balance";
/// How long one store may take: small against the time limit, as the algorithm asks.
const STORE_WITHIN: Duration = Duration::from_millis(200);

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    if !installed("redis-server") {
        return Err(DemoError::new(
            "this demo needs real Redis processes: install redis-server (on Debian: apt-get install redis-server)",
        ));
    }
    narrator.say(&format!(
        "{STORES} independent Redis stores, a lock on a majority of them, a time limit of {}.",
        seconds(ttl)
    ));

    narrator.part("A pause: the first holder stops between its check and its write");
    let paused = pause_breaks_it(narrator, ttl)?;
    narrator
        .bad("The second holder's write is gone. There was no number by which to refuse the first one's.");

    narrator.part("A store forgets: one of three crashes and comes back empty");
    let forgot = restart_breaks_it(narrator, ttl)?;
    narrator.bad("Two majorities, two holders, both within their time, nobody paused.");

    narrator.part("A clock is set: three stores think that an hour has passed");
    let stepped = match fake_clock() {
        Some(library) => {
            let stepped = clock_breaks_it(narrator, ttl, &library)?;
            narrator.bad("Two holders again: Redis counts time limits by a clock that can be set.");
            stepped
        }
        None => {
            narrator.aside("left out: libfaketime is not installed (on Debian: apt-get install faketime)");
            Value::Null
        }
    };

    narrator.part("The same pause with one replicated log, a token, and a storage that compares");
    let with = pause::half(narrator, ttl, 2, true)?;
    narrator.good("Refused. The order of grants is a number, and the storage knows it.");
    Ok(json!({"without": {"pause": paused, "restart": forgot, "clock": stepped}, "with": with}))
}

/// The stores of one part.
struct Stores {
    // Dropped in this order: first the stores end, then their folder is removed.
    running: Vec<Option<Process>>,
    addresses: Vec<SocketAddr>,
    folder: Folder,
    faked: Option<(PathBuf, PathBuf)>,
}

impl Stores {
    /// Five stores for the lock, and a sixth that is the storage. With a library that fakes clocks, the last
    /// three of the five go by the time in a file.
    fn open(library: Option<&Path>) -> Result<Stores, DemoError> {
        let folder = Folder::new()?;
        let faked = library.map(|library| (library.to_path_buf(), folder.path().join("clock")));
        if let Some((_, clock)) = &faked {
            std::fs::write(clock, "+0")?;
        }
        let mut stores =
            Stores { running: Vec::new(), addresses: free_addresses(STORES + 1)?, folder, faked };
        stores.running.resize_with(STORES + 1, || None);
        for index in 0..=STORES {
            stores.start(index)?;
        }
        Ok(stores)
    }

    fn start(&mut self, index: usize) -> Result<(), DemoError> {
        let port = self.addresses[index].port().to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--logfile", "", "--daemonize", "no"]).arg("--dir").arg(self.folder.path());
        if let Some((library, clock)) = &self.faked
            && (STORES - 3..STORES).contains(&index)
        {
            // The C library's own allocator goes first: the one that Redis is linked with reads the clock
            // while the library that fakes it is still waking up.
            command.env("LD_PRELOAD", format!("{}:libc.so.6", library.display()));
            command.env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running[index] = Some(Process::start(&mut command)?);
        let started = Instant::now();
        while ask(self.addresses[index], "PING").ok().as_deref() != Some("+PONG") {
            if started.elapsed() > Duration::from_secs(20) {
                return Err(DemoError::new("a redis-server did not answer within 20 s"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn crash(&mut self, index: usize) {
        self.running[index] = None;
    }

    fn storage(&self) -> SocketAddr {
        self.addresses[STORES]
    }

    fn client(&self, name: &str, ttl: Duration) -> Result<RoleProcess, DemoError> {
        let role = Role::Redlock {
            instances: self.addresses[..STORES].to_vec(),
            storage: self.storage(),
            name: name.to_owned(),
            ttl_ms: millis(ttl),
        };
        RoleProcess::start(name, &role)
    }
}

fn pause_breaks_it(narrator: &mut Narrator, ttl: Duration) -> Result<Value, DemoError> {
    let stores = Stores::open(None)?;
    let mut first = stores.client("first", ttl)?;
    let granted = first.wait_for(&["granted"])?;
    first.send("check")?;
    let left = first.wait_for(&["checked"])?.number("left_ms");
    first.freeze()?;
    first.send("write 90, says the first")?;
    narrator.say(&format!(
        "The first has {} of {STORES} and {left} ms left; it stops (SIGSTOP).",
        granted.number("stores")
    ));
    let mut second = stores.client("second", ttl)?;
    let granted = second.wait_for(&["granted"])?;
    second.send("write 250, says the second")?;
    second.wait_for(&["wrote"])?;
    narrator.say(&format!("The second has {} of {STORES}, and writes: 250.", granted.number("stores")));
    first.wake()?;
    let late = first.wait_for(&["wrote"])?;
    let value = text(stores.storage(), STORAGE)?;
    narrator.say(&format!("The first wakes up and writes. In the storage: {value}"));
    Ok(json!({"late_write": late.said, "value": value}))
}

fn restart_breaks_it(narrator: &mut Narrator, ttl: Duration) -> Result<Value, DemoError> {
    let ttl = ttl * 10;
    let mut stores = Stores::open(None)?;
    stores.crash(3);
    stores.crash(4);
    let mut first = stores.client("first", ttl)?;
    let granted = first.wait_for(&["granted"])?;
    narrator.say(&format!("Two stores are down; the first has the other {}.", granted.number("stores")));
    stores.start(3)?;
    stores.start(4)?;
    stores.crash(2);
    stores.start(2)?;
    narrator.say("They are back. One that had the lock crashes and is back, too, without it.");
    both_hold(narrator, &stores, first, ttl)
}

fn clock_breaks_it(narrator: &mut Narrator, ttl: Duration, library: &Path) -> Result<Value, DemoError> {
    let ttl = ttl * 10;
    let stores = Stores::open(Some(library))?;
    let mut first = stores.client("first", ttl)?;
    let granted = first.wait_for(&["granted"])?;
    narrator.say(&format!("The first has {} of {STORES}.", granted.number("stores")));
    if let Some((_, clock)) = &stores.faked {
        std::fs::write(clock, "+1h")?;
    }
    narrator.say("The clocks of three stores are set forward by an hour.");
    both_hold(narrator, &stores, first, ttl)
}

/// A second one acquires, and both say what is left of their time.
fn both_hold(
    narrator: &mut Narrator,
    stores: &Stores,
    mut first: RoleProcess,
    ttl: Duration,
) -> Result<Value, DemoError> {
    let mut second = stores.client("second", ttl)?;
    let granted = second.wait_for(&["granted"])?;
    first.send("check")?;
    second.send("check")?;
    let left =
        [first.wait_for(&["checked"])?.number("left_ms"), second.wait_for(&["checked"])?.number("left_ms")];
    narrator.say(&format!(
        "The second has {} of {STORES}. The first believes for another {}, the second for {}.",
        granted.number("stores"),
        seconds(Duration::from_millis(left[0])),
        seconds(Duration::from_millis(left[1]))
    ));
    Ok(json!({"first_left_ms": left[0], "second_left_ms": left[1]}))
}

/// The part of a client of the lock.
pub fn run_role(stores: &[SocketAddr], storage: SocketAddr, name: &str, ttl: Duration) -> io::Result<()> {
    let drift = ttl / 100 + Duration::from_millis(2);
    let until = loop {
        let started = moment();
        let set = format!("SET {LOCK} {name}-{} NX PX {}", std::process::id(), ttl.as_millis());
        let got =
            stores.iter().filter(|store| ask(**store, &set).is_ok_and(|answer| answer == "+OK")).count();
        let until = started + ttl - drift;
        if got > stores.len() / 2 && moment() < until {
            say("granted", json!({"stores": got}));
            break until;
        }
        // What was locked in vain is given back, as the algorithm asks; only what is ours.
        for store in stores {
            if bulk(*store, LOCK).is_ok_and(|held| held == format!("{name}-{}", std::process::id())) {
                let _ = ask(*store, &format!("DEL {LOCK}"));
            }
        }
        std::thread::sleep(Duration::from_millis(30 + u64::from(std::process::id() % 40)));
    };
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("write", value)) => {
                ask(storage, &format!("SET {STORAGE} \"{value}\""))?;
                say("wrote", json!({}));
            }
            _ => say("checked", json!({"left_ms": millis(until.saturating_sub(moment()))})),
        }
    }
    Ok(())
}

fn text(store: SocketAddr, key: &str) -> Result<String, DemoError> {
    Ok(bulk(store, key)?)
}

fn connect(store: SocketAddr, command: &str) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&store, STORE_WITHIN)?;
    stream.set_read_timeout(Some(STORE_WITHIN))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    Ok(BufReader::new(stream))
}

/// One command, answered with one line.
fn ask(store: SocketAddr, command: &str) -> io::Result<String> {
    let mut line = String::new();
    connect(store, command)?.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// The value of a key; empty if there is none.
fn bulk(store: SocketAddr, key: &str) -> io::Result<String> {
    let mut connection = connect(store, &format!("GET {key}"))?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let length = line.trim_end().strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
    let mut value = vec![0; length.unwrap_or(0)];
    connection.read_exact(&mut value)?;
    Ok(String::from_utf8_lossy(&value).into_owned())
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The library that lets a process believe in another time, if it is installed.
fn fake_clock() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let library = |folder: &&str| Path::new(folder).join("faketime/libfaketimeMT.so.1");
    folders.iter().map(library).find(|path| path.is_file())
}
