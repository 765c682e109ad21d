//! `tenure serve`: one node. Reads flags into the server's configuration, sets up logging, and waits for the
//! signal to stop; the server does everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::DirBuilder;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::json;
use tenure_client::DEFAULT_PORT;
use tenure_clock::{Clock, SystemClock};
use tenure_core::FormatVersion;
use tenure_server::{
    AuditFileLimits, AuditOptions, AuditPlace, AuditScope, ClientPortTls, Config, EventFileOptions,
    JwtIssuer, PeerSecurity, Server,
};
use tenure_tls::{CertificateSource, NodeKey, PairFiles, PeerTls, Root, ServerTls, TlsError};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::args::{Bytes, Globals, Length, TlsArgs};
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;
use crate::render::Form;

const EXAMPLES: &str = "\
Examples:
  tenure serve                               a single node: durable, not fault-tolerant
  tenure serve --listen 127.0.0.1:7401 --data-dir /var/lib/tenure

A secured one: with a root both ports speak TLS, and nobody without a certificate of it gets to the peers:
  tenure cluster new-root > root.pem
  tenure serve --root root.pem --listen 10.0.0.1:7400 --name db-1.example

Three nodes, here on one machine; the first start of all of them forms the cluster:
  peers=1=127.0.0.1:7501,2=127.0.0.1:7502,3=127.0.0.1:7503
  tenure serve --node 1 --peers $peers --listen 127.0.0.1:7401 --data-dir data-1
  tenure serve --node 2 --peers $peers --listen 127.0.0.1:7402 --data-dir data-2
  tenure serve --node 3 --peers $peers --listen 127.0.0.1:7403 --data-dir data-3

A single node that is to become three: give it a port for peers; its data and its sessions stay:
  tenure serve --node 1 --peers 1=127.0.0.1:7501
  tenure cluster add --help                  goes on from there

SIGTERM and SIGINT drain: no new connections, leadership is handed on, requests under way end. A second one stops at \
once; nothing that was acknowledged is lost either way.";

/// Run a node: a single durable one, or a member of a cluster
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where clients connect: gRPC, HTTP/JSON, dashboard and metrics, all on one port
    #[arg(long, value_name = "HOST:PORT", default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    pub listen: String,
    /// The address that is advertised to clients, if it is not the one listened on
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Raise the agreed format version by itself, once every node has run this release for so long
    #[arg(long, value_name = "AFTER")]
    pub auto_upgrade: Option<Length>,
    /// Know only format versions up to this one, as an older release does: to rehearse an upgrade
    #[arg(long, value_name = "VERSION", hide = true, value_parser = parse_format)]
    pub format_newest: Option<FormatVersion>,
    /// Where the log and the snapshots are kept
    #[arg(long, value_name = "DIR", default_value = "./tenure-data")]
    pub data_dir: PathBuf,
    /// Keep so many bytes of past events in the data directory, for watchers and `events export`; 0 keeps none
    #[arg(long, value_name = "BYTES", default_value = "256MiB", help_heading = "Past events")]
    pub events_bytes: Bytes,
    /// Keep past events for so long
    #[arg(long, value_name = "AGE", default_value_t = Length::seconds(7 * 24 * 3_600), help_heading = "Past events")]
    pub events_age: Length,
    /// Listen beyond this machine without TLS: whoever reaches the port may do anything
    #[arg(long)]
    pub insecure: bool,
    /// How nodes speak with each other: `require` TLS (the default with --root), `both` while a running cluster
    /// changes over, or `off`
    #[arg(long, value_enum, value_name = "MODE", help_heading = "TLS", hide_possible_values = true)]
    pub peer_tls: Option<TlsMode>,
    /// The same for clients: `require` (the default with --root or --tls-cert), `both`, or `off`
    #[arg(long, value_enum, value_name = "MODE", help_heading = "TLS", hide_possible_values = true)]
    pub client_tls: Option<TlsMode>,
    /// A further name under which clients reach this node; it stands in the certificate that the root signs
    #[arg(long = "name", value_name = "NAME", help_heading = "TLS")]
    pub names: Vec<String>,
    /// The certificate for clients, and behind it those between it and its root; instead of one that the root signs.
    /// Read again when it changes, and on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
    /// The authorities whose certificates of clients are believed, beside the root
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,
    /// The number of this node in the cluster
    #[arg(long, value_name = "N", requires = "peers", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Cluster")]
    pub node: Option<u64>,
    /// The peer addresses of all founding members, this one among them; it listens for peers at its own. A
    /// node with data needs none: it goes on where its cluster knows it
    #[arg(long, value_name = "N=HOST:PORT,…", requires = "node", help_heading = "Cluster")]
    pub peers: Option<Peers>,
    /// Client connections open at once; by default as many as the limit of open files allows, at most 16384
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_max: Option<u32>,
    /// Believe the JSON web tokens of an issuer: `k8s,issuer=https://…,audience=tenure,jwks=FILE`. Its callers are
    /// jwt/k8s/SUBJECT. The file is read again when it changes; nobody is called. May be given several times
    #[arg(long, value_name = "NAME,issuer=…,audience=…,jwks=FILE[,algorithms=…]", help_heading = "Callers")]
    pub jwt: Vec<JwtIssuer>,
    /// Calls a second that one identity may make on this node, renewals apart; 0 is as many as it takes
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Callers")]
    pub identity_calls_per_second: u32,
    /// Where the audit log goes: a folder, `stderr`, or `off`; by default a folder in the data directory
    #[arg(long, value_name = "DIR", help_heading = "Audit log")]
    pub audit_log: Option<String>,
    /// What is recorded: denials and calls that manage, operate or grant (`sensitive`), or `all`
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = AuditArg::Sensitive, help_heading = "Audit log")]
    pub audit: AuditArg,
    /// Bytes of one file of the audit log
    #[arg(long, value_name = "BYTES", default_value = "64MiB", help_heading = "Audit log")]
    pub audit_bytes: Bytes,
    /// Files of the audit log that are kept
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Audit log")]
    pub audit_files: u16,
    /// Refuse what must be recorded while the audit log cannot be written
    #[arg(long, help_heading = "Audit log")]
    pub audit_strict: bool,
    /// How log lines look on stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text, help_heading = "Log")]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, also per module as in `info,tenure_server=debug`
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "TENURE_LOG", help_heading = "Log")]
    pub log_level: LogLevel,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditArg {
    /// What was denied, and what manages, operates or grants.
    Sensitive,
    /// Everything but renewals that were answered, and pages that need no right.
    All,
}

/// Whether TLS is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsMode {
    /// Plaintext alone.
    Off,
    /// Both: for as long as others change over.
    Both,
    /// TLS alone.
    Require,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For eyes.
    Text,
    /// One object per line.
    Json,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLevel(Targets);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let targets = text.parse::<Targets>().map_err(|error| error.to_string())?;
        // The engine tells of every message at `debug`, of every step at `info`, and of an unreachable peer
        // many times a second at `warn`, of which the replica tells once; whoever wants all of that names it.
        let without_engine = |targets: Targets| match text.contains("openraft") {
            true => targets,
            false => targets.with_target("openraft", tracing_subscriber::filter::LevelFilter::ERROR),
        };
        Ok(LogLevel(without_engine(targets)))
    }
}

/// Peer addresses by node number: `1=host:port,2=host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers(pub BTreeMap<u64, String>);

impl FromStr for Peers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut peers = BTreeMap::new();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (node, address) = one
                .split_once('=')
                .ok_or_else(|| format!("`{one}` is not N=HOST:PORT, such as 1=10.0.0.1:7500"))?;
            let node: u64 = node.parse().map_err(|_| format!("`{node}` is no node number"))?;
            if node == 0 {
                return Err("node numbers begin with 1".to_owned());
            }
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none_or(|port| port == 0) {
                return Err(format!("`{address}` names no port at which node {node} could be reached"));
            }
            if peers.values().any(|other| other == address) {
                return Err(format!("two nodes cannot share {address}"));
            }
            if peers.insert(node, address.to_owned()).is_some() {
                return Err(format!("node {node} is named twice"));
            }
        }
        if peers.is_empty() {
            return Err("it is empty".to_owned());
        }
        Ok(Peers(peers))
    }
}

/// Runs the node until a signal tells it to stop.
pub fn run(args: Args, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    let mut config = config(&args, &globals.tls)?;
    secure(&args, &globals.tls, &mut config)?;
    start_log(&args, output);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()
        .map_err(|error| CommandError::said(Exit::Other, format!("no runtime: {error}")))?;
    runtime.block_on(serve(config, output))
}

/// The log has a thread of its own, and hands every entry to and fro; one core is left to it. On a small
/// machine everything else shares one thread then, which costs less than waking a second one.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1).max(1)
}

async fn serve(config: Config, output: &Output) -> Result<Exit, CommandError> {
    let data_dir = config.data_dir.clone();
    let tls = config.client_tls.is_some();
    // Received from the first moment on: a signal that comes during the start stops the node as soon as it
    // stands.
    let signals = Received::new()
        .map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))?;
    let server = Server::start(config)
        .await
        .map_err(|error| CommandError::said(Exit::Other, format!("the node cannot start: {error}")))?;
    let voters = server.node().status().replica.voters;
    let company = match (server.is_alone(), voters.len()) {
        (true, _) => Company::None,
        (false, 1) => Company::NoneYet,
        (false, _) => Company::Others,
    };
    let greeting = Greeting { address: server.address(), data_dir, company, tls };
    let reloader = server.reloader();
    let mut hangups = signals.hangups;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            reloader.reload();
        }
    });
    output.tell(|| greeting.json(), |form| greeting.words(form))?;
    match server.run_until(signals.ends.stop()).await {
        Ok(()) => Ok(Exit::Done),
        Err(failure) => Err(CommandError::said(Exit::Other, format!("the node has failed: {failure}"))),
    }
}

/// All signals that a node receives.
struct Received {
    ends: Signals,
    /// Told to look for another certificate. Without a certificate nothing happens: a terminal that is closed must not
    /// stop a node with one, nor surprise whoever sends this to all of them.
    hangups: tokio::signal::unix::Signal,
}

impl Received {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { ends: Signals::new()?, hangups: signal(SignalKind::hangup())? })
    }
}

/// The signals that tell a node to stop.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves with the first signal; a second one ends the process, for whoever cannot wait for the drain.
    async fn stop(mut self) {
        self.signal_received().await;
        tokio::spawn(async move {
            self.signal_received().await;
            std::process::exit(Exit::Other as i32);
        });
    }

    async fn signal_received(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn config(args: &Args, tls: &TlsArgs) -> Result<Config, CommandError> {
    let listen = resolve(&args.listen)?;
    let usage = |message: String, hint: &str| CommandError::with_hint(Exit::Usage, message, hint);
    let open = "secure it with --root (`tenure cluster new-root` makes one) and without --client-tls off or both, or with \
                --tls-cert and --tls-key; or listen on 127.0.0.1; or say --insecure: then whoever reaches the port may do \
                anything";
    let modes = modes(args, tls)?;
    let mut insecure = false;
    if !listen.ip().is_loopback() && modes.client != TlsMode::Require {
        if !args.insecure {
            return Err(usage(format!("{listen} can be reached from other machines without TLS"), open));
        }
        insecure = true;
    }
    let mut config = Config::single(listen, args.data_dir.clone());
    config.advertise.clone_from(&args.advertise);
    config.format_newest = args.format_newest.unwrap_or(FormatVersion::NEWEST);
    config.auto_upgrade = args.auto_upgrade.map(|after| after.get());
    config.event_files =
        EventFileOptions { bytes_max: args.events_bytes.get(), age_max: args.events_age.get() };
    config.peers_beyond_this_machine = args.insecure || modes.peer == TlsMode::Require;
    config.jwt_issuers.clone_from(&args.jwt);
    config.identity_limits.calls_per_second = Some(args.identity_calls_per_second).filter(|calls| *calls > 0);
    config.audit = audit(args)?;
    config.connections_max = args.connections_max.map(|many| many as usize);
    if let (Some(node), Some(Peers(peers))) = (args.node, &args.peers) {
        let Some(own) = peers.get(&node) else {
            return Err(usage(
                format!("--peers does not name node {node}"),
                "it lists all founding members, this one among them",
            ));
        };
        if !resolve(own)?.ip().is_loopback() && modes.peer != TlsMode::Require {
            if !args.insecure {
                let open = "secure it with --root (`tenure cluster new-root` makes one) and without --peer-tls off or both; \
                            or say --insecure: then whoever reaches the port may do anything";
                return Err(usage(format!("{own} can be reached from other machines without TLS"), open));
            }
            insecure = true;
        }
        config.node = node;
        config.peers.clone_from(peers);
    }
    config.insecure = insecure;
    config.names.clone_from(&args.names);
    Ok(config)
}

fn audit(args: &Args) -> Result<Option<AuditOptions>, CommandError> {
    let limits =
        AuditFileLimits { file_bytes_max: args.audit_bytes.get(), files_max: args.audit_files.into() };
    let place = match args.audit_log.as_deref() {
        Some("off") if args.audit_strict => {
            return Err(CommandError::with_hint(
                Exit::Usage,
                "--audit-strict needs an audit log, and --audit-log is off",
                "leave --audit-log out, or name a folder or stderr",
            ));
        }
        Some("off") => return Ok(None),
        Some("stderr") => AuditPlace::Stderr,
        Some(folder) => AuditPlace::Folder(folder.into(), limits),
        None => AuditPlace::Folder(args.data_dir.join("audit"), limits),
    };
    let scope = match args.audit {
        AuditArg::Sensitive => AuditScope::Sensitive,
        AuditArg::All => AuditScope::All,
    };
    Ok(Some(AuditOptions { place, scope, strict: args.audit_strict }))
}

/// Whether TLS is spoken, on each port.
struct Modes {
    peer: TlsMode,
    client: TlsMode,
}

fn modes(args: &Args, tls: &TlsArgs) -> Result<Modes, CommandError> {
    let given = |secured: bool| if secured { TlsMode::Require } else { TlsMode::Off };
    let (root, certificate) = (tls.root.is_some(), tls.root.is_some() || args.tls_cert.is_some());
    let modes = Modes {
        peer: args.peer_tls.unwrap_or(given(root)),
        client: args.client_tls.unwrap_or(given(certificate)),
    };
    let usage = |message: &str, hint: &str| Err(CommandError::with_hint(Exit::Usage, message, hint));
    if modes.peer != TlsMode::Off && !root {
        return usage(
            "--peer-tls needs --root",
            "`tenure cluster new-root > root.pem` makes one for all nodes",
        );
    }
    if modes.client != TlsMode::Off && !certificate {
        return usage(
            "--client-tls needs a certificate",
            "name a root with --root, or one with --tls-cert and --tls-key",
        );
    }
    Ok(modes)
}

/// Reads keys and certificates. The key of the node is made now if its data directory has none.
fn secure(args: &Args, tls: &TlsArgs, config: &mut Config) -> Result<(), CommandError> {
    let modes = modes(args, tls)?;
    let wrong = |error: TlsError| CommandError::said(Exit::Usage, error.to_string());
    let root = tls.root.as_deref().map(Root::read).transpose().map_err(wrong)?;
    let clock = Arc::new(SystemClock);
    if let Some(root) = &root {
        let directory = &config.data_dir;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| wrong(TlsError::File { path: directory.clone(), error }))?;
        let key = NodeKey::of_directory(directory).map_err(wrong)?;
        let peer = PeerTls::new(root, config.node, &key, clock.wall()).map_err(wrong)?;
        config.node_key = Some(key.hash());
        config.peer_security = match modes.peer {
            TlsMode::Off => PeerSecurity::Off,
            TlsMode::Both => PeerSecurity::Both(peer),
            TlsMode::Require => PeerSecurity::Require(peer),
        };
    }
    if modes.client == TlsMode::Off {
        return Ok(());
    }
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let source = CertificateSource {
        root,
        names: names(args, config.listen),
        files: files.map(|(certificate, key)| PairFiles { certificate, key }),
        client_authorities: args.tls_client_ca.clone(),
    };
    let served = Arc::new(ServerTls::new(source, clock).map_err(wrong)?);
    config.client_tls = Some(ClientPortTls { tls: served, plaintext_too: modes.client == TlsMode::Both });
    Ok(())
}

/// The names and addresses under which clients reach this node.
fn names(args: &Args, listen: SocketAddr) -> Vec<String> {
    let host = |address: &str| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    };
    let uname = rustix::system::uname();
    let mut names: Vec<String> = args.names.clone();
    names.extend(args.advertise.as_deref().map(host));
    names.push(host(&args.listen));
    names.push(listen.ip().to_string());
    names.extend(uname.nodename().to_str().ok().map(str::to_owned));
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    let mut seen = BTreeSet::new();
    let of_use = |name: &String| {
        let anywhere = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified());
        !name.is_empty() && name.is_ascii() && !anywhere
    };
    names.into_iter().filter(|name| of_use(name) && seen.insert(name.clone())).collect()
}

fn resolve(address: &str) -> Result<SocketAddr, CommandError> {
    let found = address.to_socket_addrs().map(|mut addresses| addresses.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(CommandError::said(Exit::Usage, format!("{address} has no address"))),
        Err(error) => Err(CommandError::with_hint(
            Exit::Usage,
            format!("{address} is no address to listen on: {error}"),
            format!("write host:port, such as 127.0.0.1:{DEFAULT_PORT}"),
        )),
    }
}

fn start_log(args: &Args, output: &Output) {
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(args.log_level.0.clone());
    match args.log_format {
        LogFormat::Text => registry.with(layer.with_ansi(output.talk_paint().is_wet())).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
}

/// What a node says once it serves.
struct Greeting {
    address: SocketAddr,
    data_dir: PathBuf,
    company: Company,
    /// Whether clients are served over TLS.
    tls: bool,
}

/// Whom a node shares its cluster with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// It has no port for peers.
    None,
    /// Others may be added.
    NoneYet,
    /// There are others, or they are awaited.
    Others,
}

impl Greeting {
    fn json(&self) -> serde_json::Value {
        json!({
            "listening": self.address.to_string(),
            "dashboard": format!("{}://{}/", self.scheme(), self.reachable()),
            "tls": self.tls,
            "data_dir": self.data_dir.display().to_string(),
            "fault_tolerant": self.company == Company::Others,
        })
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// Where a browser on this machine finds it.
    fn reachable(&self) -> SocketAddr {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        address
    }

    fn alone(&self) -> &'static str {
        match self.company {
            Company::None => " (a single node: durable, not fault-tolerant)",
            Company::NoneYet => {
                " (the only voter of its cluster: durable, not fault-tolerant; `tenure cluster add`)"
            }
            Company::Others => "",
        }
    }

    fn words(&self, form: Form) -> String {
        let paint = form.paint();
        let reachable = self.reachable();
        // The default endpoint needs no mention.
        let endpoints =
            match reachable.ip().is_loopback() && reachable.is_ipv4() && reachable.port() == DEFAULT_PORT {
                true => String::new(),
                false => format!(" --endpoints {reachable}"),
            };
        if self.tls {
            return format!(
                "Tenure serves at {} with TLS, data in {}{}.\n\
                 Dashboard: {}\n\
                 \n\
                 Try, in another terminal:\n\
                 \x20 tenure --root root.pem acquire settlement/cron --ttl 30s{endpoints}\n\
                 \x20 tenure --root root.pem explain settlement/cron{endpoints}\n",
                paint.strong(&self.address.to_string()),
                self.data_dir.display(),
                self.alone(),
                paint.strong(&format!("https://{reachable}/")),
            );
        }
        let alone = self.alone();
        let open = match self.address.ip().is_loopback() {
            true => "No TLS: whoever is on this machine may do anything.",
            false => "No TLS: whoever reaches the port may do anything.",
        };
        format!(
            "Tenure serves at {}, data in {}{alone}.\n\
             {open}\n\
             Dashboard: {}\n\
             \n\
             Try, in another terminal:\n\
             \x20 tenure acquire settlement/cron --ttl 30s{endpoints}\n\
             \x20 tenure explain settlement/cron{endpoints}\n\
             \x20 curl -X POST {reachable}/v1/leases/settlement/cron:acquire -d '{{\"holder\":\"node-b\",\"ttl_ms\":2000}}'\n",
            paint.strong(&self.address.to_string()),
            self.data_dir.display(),
            paint.strong(&format!("http://{reachable}/")),
        )
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

fn parse_format(text: &str) -> Result<FormatVersion, String> {
    let known = text.parse().ok().and_then(FormatVersion::known);
    known.ok_or_else(|| {
        format!("this build knows versions {} to {}", FormatVersion::OLDEST, FormatVersion::NEWEST)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Paint;
    use clap::Parser;
    use expect_test::expect;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: Args,
    }

    fn configured(line: &str) -> Result<Config, String> {
        let args = Only::try_parse_from(line.split_whitespace()).expect(line).args;
        config(&args, &TlsArgs::default()).map_err(|failure| match failure {
            CommandError::Said { exit: Exit::Usage, message, .. } => message,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn nobody_listens_to_the_world_by_accident() {
        assert!(configured("serve").is_ok());
        assert!(configured("serve --listen [::1]:7400").is_ok());
        assert!(configured("serve --listen 0.0.0.0:7400 --insecure").is_ok());
        for line in ["serve --listen 0.0.0.0:7400", "serve --node 1 --peers 1=0.0.0.0:7500,2=127.0.0.1:7501"]
        {
            assert!(configured(line).expect_err(line).contains("other machines"));
        }
    }

    #[test]
    fn a_member_is_among_its_peers() {
        let config =
            configured("serve --node 2 --peers 1=127.0.0.1:7501,2=127.0.0.1:7502").expect("it is valid");
        assert_eq!((config.node, config.peers.len()), (2, 2));
        assert!(
            configured("serve --node 3 --peers 1=127.0.0.1:7501").expect_err("not listed").contains("node 3")
        );
    }

    #[test]
    fn peers_are_checked() {
        for (text, why) in [
            ("", "empty"),
            ("1", "N=HOST:PORT"),
            ("x=a:1", "node number"),
            ("0=a:1", "begin with 1"),
            ("1=a", "names no port"),
            ("1=a:0", "names no port"),
            ("1=a:1,1=b:1", "twice"),
            ("1=a:1,2=a:1", "share"),
        ] {
            assert!(text.parse::<Peers>().expect_err(text).contains(why), "{text}");
        }
    }

    #[test]
    fn the_greeting_names_the_page_and_three_commands() {
        let greeting = |address: &str, company| Greeting {
            address: address.parse().expect("an address"),
            data_dir: "./tenure-data".into(),
            company,
            tls: false,
        };
        expect![[r#"
            Tenure serves at 127.0.0.1:7400, data in ./tenure-data (a single node: durable, not fault-tolerant).
            No TLS: whoever is on this machine may do anything.
            Dashboard: http://127.0.0.1:7400/

            Try, in another terminal:
              tenure acquire settlement/cron --ttl 30s
              tenure explain settlement/cron
              curl -X POST 127.0.0.1:7400/v1/leases/settlement/cron:acquire -d '{"holder":"node-b","ttl_ms":2000}'
        "#]]
        .assert_eq(&greeting("127.0.0.1:7400", Company::None).words(Form::Terminal(Paint::new(false))));
        let elsewhere = greeting("0.0.0.0:7401", Company::Others).words(Form::Plain);
        assert!(
            elsewhere.contains("tenure explain settlement/cron --endpoints 127.0.0.1:7401"),
            "{elsewhere}"
        );
        assert!(elsewhere.contains("http://127.0.0.1:7401/"), "{elsewhere}");
        let first = greeting("127.0.0.1:7400", Company::NoneYet).words(Form::Plain);
        assert!(first.contains("the only voter of its cluster"), "{first}");
    }

    #[test]
    fn levels_are_words_with_modules() {
        for good in ["info", "debug", "warn,tenure_server=trace"] {
            assert!(good.parse::<LogLevel>().is_ok(), "{good}");
        }
        assert!("info,tenure_server=loud".parse::<LogLevel>().is_err());
    }
}
