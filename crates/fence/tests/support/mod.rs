//! Real servers for tests: each on a free port of the loopback, with its data in a folder of its own,
//! ended together with the test process however that ends. A server that is not installed is no failure:
//! the test says that it is skipped.
#![allow(dead_code)] // each test program uses its own part

pub mod http;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A server process and its folder. Dropping it ends the server and removes the folder.
pub struct Server {
    pub port: u16,
    pub dir: PathBuf,
    program: Program,
    child: Option<Child>,
}

/// How to start it, again if need be.
struct Program {
    name: &'static str,
    path: PathBuf,
    args: Vec<String>,
    user: Option<(u32, u32)>,
    /// The signal that ends it without letting it tidy up: what a crash leaves behind must be enough.
    crash: &'static str,
    /// A command that succeeds once the server serves, where listening is not enough.
    ready: Vec<String>,
}

impl Program {
    fn is_ready(&self) -> bool {
        let Some((program, args)) = self.ready.split_first() else { return true };
        Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
    }
}

impl Server {
    fn start(port: u16, dir: PathBuf, program: Program) -> Server {
        let mut server = Server { port, dir, program, child: None };
        server.spawn();
        server
    }

    fn spawn(&mut self) {
        // The shell waits on a pipe that only this process holds open: when the test ends, even by a kill,
        // the pipe closes and the shell takes the server with it.
        // The folder goes too, unless the server is to come back.
        let script = format!(
            "\"$@\" & p=$!; word=$(cat); kill -{} $p; wait $p; [ \"$word\" = keep ] || rm -rf '{}'",
            self.program.crash,
            self.dir.display()
        );
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).expect("log");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(&self.program.path).args(&self.program.args);
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .current_dir(&self.dir);
        if let Some((uid, gid)) = self.program.user {
            command.uid(uid).gid(gid);
        }
        self.child = Some(command.spawn().expect("a shell"));
        let patience = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() || !self.program.is_ready() {
            assert!(Instant::now() < patience, "{} did not come up:\n{}", self.program.name, self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self, word: &str) {
        if let Some(mut child) = self.child.take() {
            let mut pipe = child.stdin.take().expect("the pipe");
            pipe.write_all(word.as_bytes()).expect("the shell");
            drop(pipe);
            let _ = child.wait();
        }
    }

    /// Crashes the server and starts it again on the same data.
    pub fn crash_and_restart(&mut self) {
        self.end("keep");
        self.spawn();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end("remove");
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A fresh folder that other users may enter.
pub fn folder(what: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("tenure-fence-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    fs::create_dir_all(&dir).expect("a temporary folder");
    dir
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn find(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/usr/bin", "/usr/local/bin"]).map(PathBuf::from);
    // Where `cargo xtask setup` puts Python programs, seen from this one (`target/debug/deps/name-hash`).
    // First, because a manager of Python versions may have put a stand-in for the program into the search
    // path.
    let program = std::env::current_exe().expect("a running program has a path");
    let tools = program.ancestors().map(|folder| folder.join("tools/python/bin"));
    let folders = tools.filter(|folder| folder.is_dir()).chain(folders);
    let mut all: Vec<PathBuf> =
        folders.flat_map(|dir| names.iter().map(move |name| dir.join(name))).collect();
    all.retain(|path| path.is_file());
    all.into_iter().next()
}

fn missing<T>(what: &str, how: &str) -> Option<T> {
    assert!(
        std::env::var_os("TENURE_TEST_NO_SKIP").is_none(),
        "{what} is not installed, and TENURE_TEST_NO_SKIP forbids to skip ({how})"
    );
    // Past the capture of the test's output, so that `cargo xtask ci` sees and counts it; a closed stderr is
    // no reason to fail.
    let _ = writeln!(std::io::stderr(), "\nskipped: a fence's tests need {what} ({how})");
    None
}

fn user(name: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn am_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.starts_with(b"0\n"))
}

fn give(dir: &Path, user: Option<(u32, u32)>) {
    if let Some((uid, gid)) = user {
        std::os::unix::fs::chown(dir, Some(uid), Some(gid)).expect("chown");
    }
}

fn run(command: &mut Command) {
    let out = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// PostgreSQL, which refuses to run as root: then it runs as its own user.
pub fn postgres() -> Option<Server> {
    let newest = fs::read_dir("/usr/lib/postgresql").ok().and_then(|versions| {
        versions.flatten().map(|v| v.path().join("bin")).filter(|bin| bin.join("initdb").is_file()).max()
    });
    let Some(bin) = newest else { return missing("PostgreSQL", "apt-get install postgresql") };
    let user = if am_root() { user("postgres") } else { None };
    let (port, dir) = (free_port(), folder("postgres"));
    give(&dir, user);
    let data = dir.join("data");
    let mut initdb = Command::new(bin.join("initdb"));
    initdb.args(["-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C.UTF-8", "-D"]).arg(&data);
    if let Some((uid, gid)) = user {
        initdb.uid(uid).gid(gid);
    }
    run(initdb.current_dir(&dir));
    let text = |s: &str| s.to_owned();
    let data = data.display().to_string();
    let sockets = format!("unix_socket_directories={}", dir.display());
    let args = [
        "-D",
        &data,
        "-p",
        &port.to_string(),
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        &sockets,
        "-c",
        "shared_buffers=32MB",
        "-c",
        "max_connections=100",
        "-c",
        "deadlock_timeout=200ms",
    ]
    .map(text);
    let isready = bin.join("pg_isready").display().to_string();
    let ready = vec![isready, "-q".into(), "-h".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
    let program = Program {
        name: "postgres",
        path: bin.join("postgres"),
        args: args.into(),
        user,
        crash: "QUIT",
        ready,
    };
    Some(Server::start(port, dir, program))
}

/// pgbouncer in transaction mode, in front of a PostgreSQL.
pub fn pgbouncer(postgres: &Server) -> Option<Server> {
    let Some(path) = find(&["pgbouncer"]) else { return missing("pgbouncer", "apt-get install pgbouncer") };
    let user = if am_root() { user("postgres") } else { None };
    let (port, dir) = (free_port(), folder("pgbouncer"));
    give(&dir, user);
    let config = dir.join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\n\
         unix_socket_dir =\nserver_reset_query =\n",
        postgres.port
    )
    // With `any` every client logs in as one user, which the database line names.
    .replace("port=", "user=application port=");
    fs::write(&config, text).expect("pgbouncer.ini");
    let program = Program {
        name: "pgbouncer",
        path,
        args: vec![config.display().to_string()],
        user,
        crash: "KILL",
        ready: Vec::new(),
    };
    Some(Server::start(port, dir, program))
}

/// MariaDB with its own user if this is root.
pub fn mariadb() -> Option<Server> {
    let how = "apt-get install mariadb-server";
    let Some(path) = find(&["mariadbd", "mysqld"]) else { return missing("MariaDB", how) };
    let Some(install) = find(&["mariadb-install-db", "mysql_install_db"]) else {
        return missing("MariaDB", how);
    };
    let user = if am_root() { user("mysql") } else { None };
    let (port, dir) = (free_port(), folder("mariadb"));
    give(&dir, user);
    let data = format!("--datadir={}", dir.join("data").display());
    let mut prepare = Command::new(install);
    prepare.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", &data]);
    if let Some((uid, gid)) = user {
        prepare.uid(uid).gid(gid);
    }
    run(prepare.current_dir(&dir));
    let socket = format!("--socket={}", dir.join("socket").display());
    let mut args = vec!["--no-defaults".to_owned(), data, socket];
    args.extend([format!("--port={port}"), "--bind-address=127.0.0.1".into(), "--skip-grant-tables".into()]);
    args.extend(["--skip-networking=0".into(), "--innodb-buffer-pool-size=32M".into()]);
    Some(Server::start(
        port,
        dir,
        Program { name: "mariadbd", path, args, user, crash: "KILL", ready: Vec::new() },
    ))
}

/// Redis with an append-only file that is synced on every write: the mark must be as durable as the data.
pub fn redis() -> Option<Server> {
    let Some(path) = find(&["redis-server"]) else { return missing("Redis", "apt-get install redis-server") };
    let (port, dir) = (free_port(), folder("redis"));
    let args = ["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "yes"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.extend(["--appendfsync", "always", "--dir"].map(str::to_owned));
    args.push(dir.display().to_string());
    Some(Server::start(
        port,
        dir,
        Program { name: "redis-server", path, args, user: None, crash: "KILL", ready: Vec::new() },
    ))
}

/// The stand-in for S3 and DynamoDB: right about conditions, also under races, but in memory.
pub fn moto() -> Option<Server> {
    let named = std::env::var_os("TENURE_TEST_MOTO").map(PathBuf::from).filter(|path| path.is_file());
    let Some(path) = named.or_else(|| find(&["moto_server"])) else {
        return missing("moto", "cargo xtask setup");
    };
    let (port, dir) = (free_port(), folder("moto"));
    let args = vec!["-H".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
    Some(Server::start(
        port,
        dir,
        Program { name: "moto_server", path, args, user: None, crash: "KILL", ready: Vec::new() },
    ))
}

/// Everything a child process prints, once it has ended.
pub fn output(mut child: Child) -> String {
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).expect("text");
    }
    child.wait().expect("the child");
    text
}
